"""What the server answers. Fields that a newer server adds are ignored."""

from __future__ import annotations

from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all answers."""


class Hint(msgspec.Struct, frozen=True):
    """Who holds a user's prefix: a member of the fleet, and the state of the fleet when it was named."""

    owner: str
    epoch: int = 0


class Placed(Answer, frozen=True, kw_only=True):
    """An answer through a gateway names the member that gave it; one of a single server does not."""

    owner: str | None = None
    epoch: int | None = None

    @property
    def hint(self) -> Hint | None:
        """For `rank`, so that it goes to the same member."""
        return None if self.owner is None else Hint(self.owner, self.epoch or 0)


class Appended(Answer, frozen=True, kw_only=True):
    """Events are stored.

    Attributes:
        sequence: the user's events so far, dropped ones included.
        accepted, duplicates: of the events sent; `late` of the accepted ones were older than the newest.
        replayed: the key was known, and this is what was answered then.
    """

    user: str
    sequence: int
    accepted: int
    duplicates: int
    late: int
    replayed: bool


class PrefixSignal(Placed, frozen=True, kw_only=True):
    """What becomes of a prefix.

    Attributes:
        admission: `admitted` (queued), `hit` (in the cache), `joined` (on its way) or `rejected`.
        reason: why it was rejected.
        tokens, cached: of the prefix, and how many of them were in the cache.
    """

    user: str
    admission: str
    reason: str
    tokens: int
    cached: int
    model: str
    request_id: str


class Ranking(Placed, frozen=True, kw_only=True):
    """Scores in the order of the candidates.

    Attributes:
        scores: a row a candidate, a column a task.
        order: positions of the best candidates by the first task, if `top_k` asked for them.
        path: `hit`, `resumed`, `full`, or `truncated` to meet the deadline.
        tokens_cached, tokens_computed, served_tokens: history tokens, by where they came from, and in all.
        tokens_quantized: of those cached, up to the last that was rounded in host memory.
        unknown_ids: ids that the model's tables do not hold.
        model: fingerprint of the weights.
        queue_ms, compute_ms: in the server.
    """

    user: str
    tasks: tuple[str, ...]
    scores: list[list[float]]
    path: str
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


class Profile(Answer, frozen=True, kw_only=True):
    """A user's profile slots and clock offset."""

    user: str
    contextual: list[int]
    utc_offset_s: int


class Deleted(Answer, frozen=True, kw_only=True):
    """How many stored events and cache entries are gone."""

    user: str
    events: int
    entries: int


class UserState(Answer, frozen=True, kw_only=True):
    """What is held of a user.

    Attributes:
        events: stored so far; `tokens` of them would be served now, `cached` of these from the cache.
        newest_s: time of the newest event; None without events.
    """

    user: str
    events: int
    tokens: int
    cached: int
    newest_s: int | None
    model: str


class Limits(Answer, frozen=True, kw_only=True):
    """What one request may hold."""

    candidates: int
    history: int
    body_bytes: int
    deadline_ms: float


class Model(Answer, frozen=True, kw_only=True):
    """A model that is served; `model` is its fingerprint, `config` its configuration as it stands on disk."""

    name: str
    model: str
    family: str
    cacheable: str
    tasks: tuple[str, ...]
    contextual: tuple[str, ...] = ()
    query_times: str = "request"
    limits: Limits
    dtype: str
    kernel: str
    loaded_s: float
    config: dict[str, Any]


class Models(Answer, frozen=True, kw_only=True):
    models: list[Model]


class Reloaded(Answer, frozen=True, kw_only=True):
    """Fingerprints of the model that serves now and of the one before."""

    model: str
    before: str
    seconds: float


class Health(Answer, frozen=True, kw_only=True):
    """Whether the server takes requests: `starting`, `ready` or `draining`."""

    status: str

    @property
    def ready(self) -> bool:
        return self.status == "ready"


class Refusal(Answer, frozen=True, kw_only=True):
    """The inside of an error answer."""

    code: str
    message: str
    field: str = ""
    request_id: str = ""
    limit: int | None = None
    retry_after_ms: float | None = None


class Refused(Answer, frozen=True, kw_only=True):
    error: Refusal
