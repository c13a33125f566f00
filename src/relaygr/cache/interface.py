"""The contract of a user-state cache: six verbs, leases, and typed plans and refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from relaygr.cache.lease import PageCopy, ReadLease, WriteLease
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Answer, Ref, Touch


class Reason(StrEnum):
    """Why a cache said no; each is an ordinary answer, and the request goes on without the cache."""

    NO_LOWER_TIER = "no_lower_tier"  # there is nothing to load from or store to
    NOT_RESIDENT = "not_resident"  # fewer matching tokens are on the device than were asked for
    BUSY = "busy"  # another writer or transfer of this identity is in flight
    ALREADY_STORED = "already_stored"  # the tier holds all of it, or more: lease instead
    TOO_LARGE = "too_large"  # more than the whole pool
    PINNED = "pinned"  # too little is free or evictable now
    STALE_MODEL = "stale_model"  # not the model fingerprint of the last swap


class Refused(msgspec.Struct, frozen=True):
    """A typed no; nothing was changed, pinned or evicted."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class HostRun:
    """Tokens [start, start + tokens) of an entry, contiguous in the lower tier from token `offset` on."""

    start: int
    tokens: int
    offset: int


class PageSum(NamedTuple):
    """Checksum of the rows of one page of an entry, `page` counted from its first token."""

    page: int
    crc: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Bring tokens [start, start + tokens) of `ref` from `runs` into device `pages`, which may hold more.

    `runs` and `pages` begin at token 0; the rows before `start` are on the device already. `runs` are those
    of the whole stored entry, which may be longer, and `sums` its checksums: each page that the load touches
    is checked against them. The mover performs `copies`, copies the rows, and leaves zeros behind the last.
    """

    ticket: int
    ref: Ref
    start: int
    tokens: int
    runs: tuple[HostRun, ...]
    pages: tuple[int, ...]
    copies: tuple[PageCopy, ...] = ()
    sums: tuple[PageSum, ...] = ()


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Bring tokens [start, start + tokens) of `ref` from device `pages` to `runs`."""

    ticket: int
    ref: Ref
    start: int
    tokens: int
    pages: tuple[int, ...]
    runs: tuple[HostRun, ...]


class Cause(StrEnum):
    """Why an entry left a tier for good; moving to another tier, or being replaced, is no leaving."""

    ROOM = "room"  # others needed its place
    PART = "part"  # the same, and only a part of it left
    FORGOTTEN = "forgotten"
    MODEL = "model"  # another one is served
    DAMAGED = "damaged"


Departures = tuple[tuple[Cause, int], ...]


@dataclass(frozen=True, slots=True)
class HostStats:
    """Chunks of host memory by state, where free + pinned + evictable = total; and counters since the start.

    Attributes:
        pinned_chunks: of entries that are being read, and of stores in flight.
        runs: stretches that the entries lie in.
        loads, stores: that became visible.
        moving: transfers in flight.
        superseded: stores that were dropped because the entry had grown or changed meanwhile.
        refused: stores for which there was no room, because the entry is larger than the tier or all is read.
        damaged: entries that were dropped because their bytes were not those stored.
        lost_tokens: tokens evicted from the device that no other tier held.
        restored: entries from the snapshot of an earlier process; restore_rejected: snapshots not used.
        departures: entries that left, by cause.
    """

    total_chunks: int
    free_chunks: int
    pinned_chunks: int
    evictable_chunks: int
    chunk_tokens: int
    chunk_bytes: int
    entries: int
    runs: int
    evictions: int
    loads: int
    stores: int
    moving: int
    superseded: int
    damaged: int
    lost_tokens: int
    refused: int = 0
    restored: int = 0
    restore_rejected: int = 0
    departures: Departures = ()


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Bytes of the files by what they are good for, where live <= used <= total; counters since the start.

    Attributes:
        live_bytes: of entries that can be found; the rest is free with the file it lies in.
        index_bytes: memory for what the entries hold.
        saves, fetches: entries written and read that became visible.
        evictions: entries that left with the file they lay in.
        moving: transfers in flight.
        damaged: entries whose bytes were not what was written, at the start or when read.
        torn: records that were not finished when the process before ended.
        refused: saves for which there was no room.
        failures: reads and writes that the system refused.
        off: why nothing is written any more; empty while it is.
        departures: entries that left, by cause.
    """

    total_bytes: int
    used_bytes: int
    live_bytes: int
    index_bytes: int
    segments: int
    entries: int
    saves: int
    fetches: int
    evictions: int
    moving: int
    damaged: int
    torn: int
    refused: int
    failures: int
    off: str
    departures: Departures = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """Pages by state, where free + pinned + evictable = total at any time; and counters since the start.

    An entry with one leased page counts as pinned whole, since it cannot be evicted: `evictable_pages` is
    exactly what an append of another user could still get.
    """

    total_pages: int
    free_pages: int
    pinned_pages: int
    evictable_pages: int
    page_bytes: int
    entries: int
    leases: int
    evictions: int
    overdue: int
    refused: tuple[tuple[Reason, int], ...]
    host: HostStats | None = None  # None without a host tier
    oldest_lease_s: float | None = None  # when it was given out, on the caller's clock; None without leases
    disk: DiskStats | None = None  # None without a disk tier
    departures: Departures = ()  # entries that left the device, by cause
    page_tokens: int = 0

    @property
    def total_bytes(self) -> int:
        return self.total_pages * self.page_bytes

    @property
    def free_bytes(self) -> int:
        return self.free_pages * self.page_bytes

    @property
    def pinned_bytes(self) -> int:
        return self.pinned_pages * self.page_bytes

    @property
    def evictable_bytes(self) -> int:
        return self.evictable_pages * self.page_bytes


class StateCache(ABC):
    """The user states of one device, as ids and numbers; the bytes belong to the movers.

    All methods run on the scheduler's thread: no locks, and an answer holds until the next call. `now_s`
    and `deadline_s` are on the caller's monotonic clock. "No" is a `Refused`, a `Miss` or False; nothing is
    raised for a full, busy or empty cache. ValueError says that an argument can never be right.
    """

    @abstractmethod
    def lookup(self, ref: Ref) -> Answer:
        """What is readable now. Changes nothing, not even recency; holds nothing: `lease` may still refuse.

        With a writer of the same identity in flight this describes the version before.
        """

    @abstractmethod
    def prepare_load(
        self, ref: Ref, tokens: int, now_s: float, deadline_s: float, whole: bool = False
    ) -> LoadPlan | Refused:
        """Pin the first `tokens` in the lower tier and make room on the device; visible only when complete.

        Tokens that the device has are not copied again. Until `complete_load`, or a sweep after the deadline,
        the pages are the mover's. With `whole` there are pages for all of `ref`: whoever computes the rows
        behind `tokens` writes them beside the mover, and `complete_load` publishes both.
        Refused: no_lower_tier, not_resident (fewer match there), already_stored (the device has them), busy,
        too_large, pinned, stale_model. Raises: ValueError for `tokens` below 1.
        """

    @abstractmethod
    def complete_load(self, plan: LoadPlan, ok: bool, damaged: bool = False) -> bool:
        """Publish what `plan` brought, or give its pages back; True if it is visible now.

        False also when the user was forgotten or the model swapped meanwhile, when a sweep ended the plan,
        and for a plan that is unknown or complete already, which changes nothing. `damaged` drops the source:
        its bytes are not what was stored.
        """

    @abstractmethod
    def prepare_store(self, ref: Ref, tokens: int, now_s: float) -> StorePlan | Refused:
        """Pin the device pages that the lower tier lacks and make room there; visible only when complete.

        Refused: no_lower_tier, not_resident (fewer than `tokens` match on the device), already_stored, busy,
        too_large, pinned, stale_model. Raises: ValueError for `tokens` below 1.
        """

    @abstractmethod
    def complete_store(self, plan: StorePlan, ok: bool, sums: tuple[PageSum, ...] = ()) -> bool:
        """Publish what was stored, or give its room back; True if it is visible now.

        False also in the cases that `complete_load` names. `sums` will be handed out with every load.
        """

    @abstractmethod
    def touch(self, ref: Ref, kind: Touch) -> None:
        """Note a use: the only update of recency and frequency, in every tier; unknown content is a no-op."""

    @abstractmethod
    def lease(
        self, ref: Ref, tokens: int, owner: str, now_s: float, deadline_s: float
    ) -> ReadLease | Refused:
        """Pin the pages of the first `tokens` tokens, which must match `ref` and be on the device.

        The rows are safe to read until the lease ends, whatever is appended, evicted, forgotten or swapped.
        Refused: not_resident, stale_model. Raises: ValueError for `tokens` below 1.
        """

    @abstractmethod
    def append(self, ref: Ref, owner: str, now_s: float, deadline_s: float) -> WriteLease | Refused:
        """Prepare a version with the whole content of `ref`: keep the longest matching prefix, take pages.

        Evicts only the shortfall, least recently used first, never this identity's own entry and never one
        with a leased page. A `ref` that departs from the entry replaces it on publish; one that the entry
        already covers is refused, so that the longer entry stays.
        Refused: busy, already_stored, too_large, pinned, stale_model.
        """

    @abstractmethod
    def forget(self, tenant: Tenant, user: UserId) -> int:
        """Drop every entry of the user, and let no write in flight publish; returns the entries dropped.

        When it returns `lookup` misses; pages still leased are free when their leases end.
        """

    @abstractmethod
    def swap_model(self, model_fp: Fingerprint) -> None:
        """From now on serve `model_fp` alone; other entries are gone, their pages free when unleased."""

    @abstractmethod
    def sweep(self, now_s: float) -> int:
        """End the leases that expired and give their pages back; returns (and counts) how many."""

    @abstractmethod
    def stats(self) -> Stats:
        """A snapshot; constant time."""
