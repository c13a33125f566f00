"""What is asked of a user-state cache and what it answers; shared by `relay`, `cache` and the engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from relaygr.core.ids import Fingerprint, Tenant, UserId


class Ref(NamedTuple):
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


class Hit(NamedTuple):
    """Tokens [device_start, device_end) are on the device, [0, host) in host memory, [0, disk) on disk.

    All of them count only what matches the request's content, whatever else an entry holds. `usable` is the
    longest of them: what is readable once it has been loaded. What can be read at once is `device_end`.
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


class Prefix(Protocol):
    """What a prefix left behind for scoring, of whatever kind: K/V of every layer, or a sketch of fixed size.

    Decisions about prefixes rest on these two alone.
    """

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, and that a copy of it moves."""
        ...

    def valid_for(self, ref: Ref) -> int:
        """Tokens at the head of `ref` that it stands for: 0 if it is no use, `ref.tokens` if it is ready."""
        ...


class Touch(Enum):
    """Why an entry's recency and frequency move."""

    HIT = "hit"
    LOAD = "load"
    APPEND = "append"
