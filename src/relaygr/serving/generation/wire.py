"""Bodies and answers of generation and its catalogues as JSON.

Several names that other servers give a field are understood; a field given under two names is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from relaygr.serving.wire import Body, Int, Milliseconds, Name

Size = Annotated[int, Meta(ge=1, le=1_048_576)]
Widths = Size | Annotated[list[Size], Meta(min_length=1, max_length=64)]
Normalization = Literal["full", "level", "valid"]
ItemId = Int | Annotated[str, Meta(max_length=4096)]
FilterName = Annotated[str, Meta(min_length=1, max_length=256)]
Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Version = Annotated[str, Meta(min_length=1, max_length=256)]


class GenerateBody(Body, frozen=True, kw_only=True):
    """Items to generate for a prompt: the stored history of a user, or one that comes with the request.

    Exactly one of `user`, `token_ids`, `history` (item ids, oldest first) and `text` is needed.
    """

    user: Name | None = None
    token_ids: list[Int] | None = None
    history: list[ItemId] | None = None
    text: str | None = None
    beam_width: Widths | UnsetType = UNSET
    num_beams: Widths | UnsetType = UNSET
    n: Widths | UnsetType = UNSET
    top_k_for_generation: Widths | UnsetType = UNSET
    num_results: Size | UnsetType = UNSET
    num_return_sequences: Size | UnsetType = UNSET
    max_items: Size | UnsetType = UNSET
    total_conversion_threshold: Size | UnsetType = UNSET
    max_items_per_sid: Size | UnsetType = UNSET
    each_conversion_threshold: Size | UnsetType = UNSET
    normalization: Normalization | None = None
    allow: list[ItemId] | None = None
    deny: list[ItemId] | None = None
    filters: list[FilterName] = []
    unknown_items: Literal["skip", "reject"] | None = None
    deadline_ms: Milliseconds | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class Generated(Struct, frozen=True):
    """One semantic id: its codes, the logarithm of its probability, its items, best first."""

    sid: list[int]
    score: float
    items: list[int | str]


class GenerateTimings(Struct, frozen=True):
    """Milliseconds: waiting; the prompt; and, over all rounds, the model, selection and index work."""

    queue_ms: float
    prefill_ms: float
    forward_ms: float
    selection_ms: float
    prepare_ms: float
    total_ms: float


class GenerateAnswer(Struct, frozen=True, omit_defaults=True):
    results: list[Generated]
    normalization: Normalization
    catalog_version: str
    model_version: str
    requested: int
    returned: int
    prompt_tokens: int
    cached_tokens: int
    unknown_items: int
    timings: GenerateTimings
    request_id: str
    underflow: Literal["catalog_exhausted", "beam_exhausted"] | None = None


class CatalogueBody(Body, frozen=True, kw_only=True):
    """A catalogue folder to load; unless `serve` is false it serves from the next request on."""

    path: Path
    serve: bool = True


class CatalogueSwapBody(Body, frozen=True, kw_only=True):
    """A version that is kept, to serve from the next request on."""

    version: Version


class WithdrawBody(Body, frozen=True, kw_only=True):
    """Items that no answer may contain until a catalogue is built without them; in place of those before."""

    items: Annotated[list[ItemId], Meta(max_length=1_048_576)]


class CatalogueCard(Struct, frozen=True):
    """One version in memory."""

    version: str
    path: str
    serving: bool
    pins: int
    levels: list[int]
    sids: int
    items: int
    nbytes: int
    created_at: str
    loaded_s: float


class CataloguesAnswer(Struct, frozen=True):
    """The versions in memory, newest first; `error` is of the last load, empty if it worked."""

    serving: str
    versions: list[CatalogueCard]
    withdrawn: int
    error: str
