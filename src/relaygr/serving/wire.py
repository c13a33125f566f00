"""What requests and answers look like as JSON; unknown fields are errors, integers are 64 bits wide."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from relaygr.core.ids import MAX_NAME_BYTES

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Time = Annotated[int, Meta(ge=0, lt=10**11)]
UtcOffset = Annotated[int, Meta(ge=-86_400, le=86_400)]
Milliseconds = Annotated[float, Meta(gt=0)]
# In characters; names have at most as many bytes.
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
# Two numbers of 64 bits, the second 0 where it is left out.
Offset = Annotated[str, Meta(pattern=r"^[0-9]{1,20}(-[0-9]{1,20})?$", max_length=41)]


RankPath = Literal["hit", "reloaded", "resumed", "full", "truncated", "degraded"]


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a request."""


class History(Body, frozen=True, kw_only=True):
    """A user's events, oldest first, in place of the stored ones."""

    items: list[Int]
    timestamps: list[Time]
    actions: list[Count] | None = None
    contextual: list[Int] = []
    utc_offset_s: UtcOffset = 0
    first_sequence: Annotated[int, Meta(ge=0, le=2**62)] = 0


class EventsBody(Body, frozen=True, kw_only=True):
    """Events of one user to append; `source` and `offsets`, where they stand in a stream."""

    user: Name
    items: list[Int]
    timestamps: list[Time]
    actions: list[Count] | None = None
    key: Name | None = None
    source: Name | None = None
    offsets: list[Offset] | None = None


class PrefixBody(Body, frozen=True, kw_only=True):
    """A user who will be ranked soon."""

    user: Name
    deadline_ms: Milliseconds | None = None
    history: History | None = None
    candidates: Annotated[int, Meta(ge=0, le=1_048_576)] | None = None
    generate: bool = False


class RankBody(Body, frozen=True, kw_only=True):
    """Candidates to score for a user."""

    user: Name
    candidates: list[Int]
    query_time: Time | list[Time] | None = None
    deadline_ms: Milliseconds | None = None
    budget_ms: Milliseconds | None = None
    history: History | None = None
    output: Literal["logits", "probabilities"] = "logits"
    top_k: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class ProfileBody(Body, frozen=True, kw_only=True):
    """A user's profile slots and clock offset."""

    contextual: list[Int]
    utc_offset_s: UtcOffset = 0


class ReloadBody(Body, frozen=True, kw_only=True):
    """A model folder; without one, the folder that is served now is read again."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


class EventsAnswer(Struct, frozen=True):
    user: str
    sequence: int
    accepted: int
    duplicates: int
    late: int
    replayed: bool


class PrefixReply(Struct, frozen=True):
    user: str
    admission: Literal["admitted", "hit", "joined", "rejected"]
    reason: str
    tokens: int
    cached: int
    model: str
    request_id: str


class RankAnswer(Struct, frozen=True, omit_defaults=True):
    user: str
    tasks: tuple[str, ...]
    scores: list[list[float]]
    path: RankPath
    tokens_cached: int
    tokens_computed: int
    served_tokens: int
    unknown_ids: int
    model: str
    request_id: str
    queue_ms: float
    compute_ms: float
    order: list[int] | None = None
    tokens_quantized: int = 0


class ProfileAnswer(Struct, frozen=True):
    user: str
    contextual: list[int]
    utc_offset_s: int


class DeleteAnswer(Struct, frozen=True):
    user: str
    events: int
    entries: int


class StateAnswer(Struct, frozen=True):
    user: str
    events: int
    tokens: int
    cached: int
    newest_s: int | None
    model: str


class ModelLimits(Struct, frozen=True):
    candidates: int
    history: int
    body_bytes: int
    deadline_ms: float


class ModelCard(Struct, frozen=True):
    name: str
    model: str
    path: str
    family: str
    cacheable: Literal["append", "request", "none"]
    tasks: tuple[str, ...]
    contextual: tuple[str, ...]
    query_times: Literal["request", "candidate"]
    limits: ModelLimits
    dtype: str
    kernel: str
    loaded_s: float
    config: dict[str, Any]


class GeneratorCard(Struct, frozen=True):
    """The decoder that generates; `catalogue` is the version that serves."""

    model: str
    path: str
    family: str
    dtype: str
    attention: str
    normalization: Literal["full", "level", "valid"]
    prompt_tokens: int
    prompt_items: int
    beam_width: int
    results: int
    texts: bool
    catalogue: str


class ModelsAnswer(Struct, frozen=True, omit_defaults=True):
    models: list[ModelCard]
    generator: GeneratorCard | None = None


class ReloadAnswer(Struct, frozen=True):
    model: str
    before: str
    seconds: float


class Feedback(Struct, frozen=True, kw_only=True):
    """What a router wants to know of an instance.

    Attributes:
        build: fingerprint of the model; page_tokens: of its prefixes. Routers refuse members that differ.
        epoch: the highest that a router named to it.
        load: ranking and prefixes that wait or run.
        pre_wait_ms: until a new pre-inference would begin.
        rank_share: of the model's time, what ranking takes.
        live_bytes, bound_bytes: of prefixes that are held.
    """

    ready: bool
    draining: bool
    build: str
    page_tokens: int
    epoch: int
    load: int
    pre_wait_ms: float
    rank_share: float
    live_bytes: int
    bound_bytes: int
    q_rate_per_s: float
    q_load_per_s: float


class Health(Struct, frozen=True):
    status: Literal["starting", "ready", "draining"]


class ErrorDetail(Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    field: str
    request_id: str
    limit: int | None = None
    retry_after_ms: float | None = None


class ErrorAnswer(Struct, frozen=True):
    error: ErrorDetail
