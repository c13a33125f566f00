"""What generation is asked and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from relaygr.generation.catalogue.index import ItemId
from relaygr.generation.errors import InvalidRequestError
from relaygr.generation.normalise import Normalization
from relaygr.generation.results import Found

DEFAULT_BEAM_WIDTH = 128
DEFAULT_MAX_ITEMS = 1000
DEFAULT_MAX_ITEMS_PER_SID = 50

# Names that other servers use for the same fields.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "num_beams": "beam_width",
        "n": "beam_width",
        "top_k_for_generation": "beam_width",
        "num_return_sequences": "num_results",
        "total_conversion_threshold": "max_items",
        "each_conversion_threshold": "max_items_per_sid",
    }
)
_INPUTS = ("user", "token_ids", "history", "text")
_MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Semantic ids and items for one prompt; exactly one of `user`, `token_ids`, `history` and `text`.

    Attributes:
        request_id: echoed in results and errors.
        user: whose stored history is the prompt.
        token_ids: the prompt as the model's tokens.
        history: the prompt as item ids, oldest first.
        text: the prompt as text.
        beam_width: beams kept by each round, or one number a level.
        num_results: rows wanted; the last level's width by default.
        normalization: what scores are relative to.
        max_items: items named in the response.
        max_items_per_sid: items named of one semantic id.
        allow: only these items; None for all. An empty list allows nothing.
        deny: never these items.
        exclude_seen: never an item of the history either, those before the prompt's window included; with
            `user` or `history` only.
        filters: names of catalogue filters that items must pass.
        deadline_ms: from admission; None for the server's default.
        seed: sample beams by Gumbel noise of this seed instead of taking the best; None (default) does not.

    Raises:
        InvalidRequestError: naming the field.
    """

    request_id: str = ""
    user: str | None = None
    token_ids: Sequence[int] | None = None
    history: Sequence[ItemId] | None = None
    text: str | None = None
    beam_width: int | Sequence[int] = DEFAULT_BEAM_WIDTH
    num_results: int | None = None
    normalization: Normalization = Normalization.LEVEL
    max_items: int = DEFAULT_MAX_ITEMS
    max_items_per_sid: int = DEFAULT_MAX_ITEMS_PER_SID
    allow: Sequence[ItemId] | None = None
    deny: Sequence[ItemId] = ()
    exclude_seen: bool = False
    filters: Sequence[str] = ()
    deadline_ms: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in _INPUTS if getattr(self, name) is not None]
        if len(given) != 1:
            what = " and ".join(given) if given else "nothing"
            raise self._invalid(given[1] if given else "token_ids", f"one input is needed, got {what}")
        self._check_prompt()
        self._check_seen()
        try:
            object.__setattr__(self, "normalization", Normalization(self.normalization))
        except ValueError:
            names = ", ".join(Normalization)
            raise self._invalid("normalization", f"{self.normalization!r} is none of {names}") from None
        for name in ("max_items", "max_items_per_sid"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise self._invalid(name, f"{value!r} is not a positive integer")
        if self.seed is not None and (
            not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed <= _MAX_SEED
        ):
            raise self._invalid("seed", f"{self.seed!r} is not an integer from 0 to 2**63 - 1")
        if self.deadline_ms is not None and not 0 < self.deadline_ms < float("inf"):
            raise self._invalid("deadline_ms", f"{self.deadline_ms!r} is not a positive number")
        for at, name in enumerate(self.filters):
            if not isinstance(name, str) or not name:
                raise self._invalid(f"filters[{at}]", f"{name!r} is not a name")

    def _check_prompt(self) -> None:
        if self.token_ids is not None:
            if len(self.token_ids) == 0:
                raise self._invalid("token_ids", "must not be empty")
            sound = set(map(type, self.token_ids)) == {int} and min(self.token_ids) >= 0
            for at, token in enumerate(() if sound else self.token_ids):
                if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                    raise self._invalid(f"token_ids[{at}]", f"{token!r} is not a token")
        if self.text is not None and not self.text:
            raise self._invalid("text", "must not be empty")

    def _check_seen(self) -> None:
        if not isinstance(self.exclude_seen, bool):
            raise self._invalid("exclude_seen", f"{self.exclude_seen!r} is neither true nor false")
        # Going on without would show what was to be left out.
        if self.exclude_seen and self.user is None and self.history is None:
            raise self._invalid("exclude_seen", "needs user or history: tokens and texts name no items")

    def _invalid(self, field: str, message: str) -> InvalidRequestError:
        return InvalidRequestError(self.request_id, message, field=field)


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """The answer to one request.

    Attributes:
        found: rows, shortfall and timings of the rounds.
        catalog_version: of the catalogue that the request was pinned to.
        model_version: fingerprint of the weights.
        prompt_tokens: tokens of the prompt; `cached_tokens` of them needed no computing.
        unknown_items: items of the history that the catalogue does not know and that were left out.
    """

    request_id: str
    found: Found
    catalog_version: str
    model_version: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    unknown_items: int = 0
