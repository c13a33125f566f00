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


class GenerateBody(Body, frozen=True, kw_only=True):
    """Items to generate for a prompt: the stored history of a user, or one that comes with the request.

    Exactly one of `user`, `token_ids`, `history` (item ids, oldest first) and `text` is needed. With
    `exclude_seen` no item of the history is in the answer.
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
    exclude_seen: bool = False
    filters: list[FilterName] | None = None
    unknown_items: Literal["skip", "reject"] | None = None
    deadline_ms: Milliseconds | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class Generated(Struct, frozen=True):
    """One semantic id: its codes, the logarithm of its probability, its items, best first."""

    sid: list[int]
    score: float
    items: list[int | str]


class GenerateTimings(Struct, frozen=True):
    """Milliseconds: waiting; the prompt; over all rounds the model, selection and index work; all of it."""

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
    underflow: Literal["catalog_exhausted", "beam_exhausted", "model_exhausted"] | None = None


class CatalogueBody(Body, frozen=True, kw_only=True):
    """A catalogue folder to serve from the next request on.

    Attributes:
        allow_shrink: although it has far fewer items than the one before.
    """

    path: Path
    allow_shrink: bool = False


class ItemsBody(Body, frozen=True, kw_only=True):
    """Items to withdraw or to restore."""

    items: Annotated[list[ItemId], Meta(max_length=1_048_576)]


class CataloguesAnswer(Struct, frozen=True):
    """The catalogue that serves and what became of the last load.

    Attributes:
        serving: its version, which names the content.
        kept: versions one may go back to, oldest first, the serving one last.
        retired: versions that are only there for requests that began with them.
        levels, sids, items: of the serving one.
        as_of_s, since_s: time of its data, and when it began to serve; Unix seconds.
        withdrawn: items that are denied since the build.
        error: of the last load; empty if it worked.
    """

    serving: str
    kept: tuple[str, ...]
    retired: tuple[str, ...]
    levels: tuple[int, ...]
    sids: int
    items: int
    as_of_s: float
    since_s: float
    withdrawn: int
    loads: int
    failures: int
    error: str
