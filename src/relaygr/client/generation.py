"""Generation: what is asked, what is answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relaygr.client.answers import Answer, Placed
from relaygr.client.calls import Call, Ints, Sent, column

ItemId = int | str


class GenerateBody(Sent, kw_only=True, omit_defaults=True):
    """Fields that stand at their default are left to the server."""

    token_ids: list[int] | None = None
    history: list[ItemId] | None = None
    text: str | None = None
    beam_width: int | list[int] | None = None
    num_results: int | None = None
    max_items: int | None = None
    max_items_per_sid: int | None = None
    normalization: str | None = None
    allow: list[ItemId] | None = None
    deny: list[ItemId] | None = None
    exclude_seen: bool = False
    filters: list[str] | None = None
    unknown_items: str | None = None
    seed: int | None = None


class Generated(Answer, frozen=True, kw_only=True):
    """One semantic id: its codes, the logarithm of its probability, its items, best first."""

    sid: list[int]
    score: float
    items: list[ItemId]


class Generation(Placed, frozen=True, kw_only=True):
    """Semantic ids and their items, best first.

    Attributes:
        normalization: what scores are relative to: `full`, `level` or `valid`.
        catalog_version, model_version: what they were generated with.
        requested, returned: rows; `underflow` says why there are fewer.
        prompt_tokens, cached_tokens: of the prompt, and how many of them came from the cache.
        unknown_items: items of the history that the catalogue does not know.
        timings: milliseconds by stage.
    """

    results: list[Generated]
    normalization: str
    catalog_version: str
    model_version: str
    requested: int
    returned: int
    prompt_tokens: int
    cached_tokens: int
    unknown_items: int
    timings: dict[str, float]
    request_id: str
    underflow: str | None = None

    @property
    def items(self) -> list[ItemId]:
        """All items, best first, each once."""
        return list(dict.fromkeys(item for row in self.results for item in row.items))


def generate(
    user: str | None,
    *,
    token_ids: Ints | None,
    history: Iterable[ItemId] | None,
    text: str | None,
    beam_width: int | Sequence[int] | None,
    num_results: int | None,
    max_items: int | None,
    max_items_per_sid: int | None,
    normalization: str | None,
    allow: Iterable[ItemId] | None,
    deny: Iterable[ItemId] | None,
    exclude_seen: bool,
    filters: Sequence[str] | None,
    unknown_items: str | None,
    seed: int | None,
    deadline_ms: float | None,
) -> Call[Generation]:
    widths = beam_width if beam_width is None or isinstance(beam_width, int) else list(beam_width)
    body = GenerateBody(
        user=user,
        token_ids=None if token_ids is None else column("token_ids", token_ids),
        history=_items(history),
        text=text,
        beam_width=widths,
        num_results=num_results,
        max_items=max_items,
        max_items_per_sid=max_items_per_sid,
        normalization=normalization,
        allow=_items(allow),
        deny=_items(deny),
        exclude_seen=exclude_seen,
        filters=None if filters is None else list(filters),
        unknown_items=unknown_items,
        seed=seed,
        deadline_ms=deadline_ms,
    )
    return Call("POST", "/v1/generate", Generation, True, body, deadline_ms)


def _items(ids: Iterable[ItemId] | None) -> list[ItemId] | None:
    if ids is None:
        return None
    # Elements of arrays would not be integers of Python.
    return list(ids.tolist() if hasattr(ids, "tolist") else ids)
