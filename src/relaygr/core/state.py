"""What is asked of a user-state cache and what it answers; shared by `relay`, `cache` and the engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from relaygr.core.ids import Fingerprint, Tenant, UserId


@dataclass(frozen=True, slots=True)
class Ref:
    """A prefix of one user's tokens, by content.

    Attributes:
        tenant, user, model_fp, schema, anchor: the identity; equal identities share one entry.
        digests: the digest chain, `digests[0]` is the seed and `digests[i + 1]` covers page `i`.
        page_ends: token index right after each digest page, strictly increasing; the last is `tokens`.
            A closed segment (profile, history) ends its page early, so pages may be short.
        records: the content itself, `record_bytes` per token; used to find the exact token of a difference.
        tokens: number of tokens in the prefix (profile slots and events).
    """

    tenant: Tenant
    user: UserId
    model_fp: Fingerprint
    schema: int
    anchor: int
    digests: tuple[bytes, ...]
    page_ends: tuple[int, ...]
    records: memoryview
    record_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing usable is stored."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Tokens [device_start, device_end) are on the device, [0, host) in host memory, [0, disk) on disk.

    `usable` is the length of the longest readable prefix that matches the request's content.
    """

    device_start: int
    device_end: int
    host: int
    disk: int
    usable: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A load, store or computation is in flight: attach to `ticket` or compute privately."""

    ticket: int
    eta_ms: float


@dataclass(frozen=True, slots=True)
class Retry:
    """The entry is held by another writer, an eviction or a forget; at the deadline treat it as a miss."""

    after_ms: float


Answer = Miss | Hit | Pending | Retry


class Touch(Enum):
    """Why an entry's recency and frequency move."""

    HIT = "hit"
    LOAD = "load"
    APPEND = "append"
