"""The contract of a history store, and the value types that cross it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError
from relaygr.core.ids import check_name
from relaygr.data.dataset import TIME_LIMIT_S

Int64s = npt.NDArray[np.int64]

MAX_BATCH_EVENTS = 65_536
MAX_CONTEXTUAL = 1_024
MAX_UTC_OFFSET_S = 86_400
MAX_OFFSET = (1 << 128) - 1


@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """Events of one user in the order of their arrival.

    Attributes:
        items: int64 [n], any value; n is at most 65,536.
        timestamps: int64 [n], Unix seconds in [0, 10^11), in any order.
        actions: int64 [n], bit sets, not negative.

    Raises:
        RequestError: when built of anything else, naming the column, the value and the limit.
    """

    items: Int64s
    timestamps: Int64s
    actions: Int64s

    def __post_init__(self) -> None:
        for name in ("items", "timestamps", "actions"):
            _check_column(name, getattr(self, name))
        if len(self.items) > MAX_BATCH_EVENTS:
            raise RequestError("items", f"{len(self.items)} events in one batch, limit {MAX_BATCH_EVENTS}")
        for name in ("timestamps", "actions"):
            if len(getattr(self, name)) != len(self.items):
                got = len(getattr(self, name))
                raise RequestError(name, f"has {got} values for {len(self.items)} items")
        if len(self.items):
            _check_range("timestamps", self.timestamps, TIME_LIMIT_S - 1)
            _check_range("actions", self.actions, np.iinfo(np.int64).max)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the events of a batch stand in an ordered stream that delivers at least once.

    Attributes:
        name: of the stream (of one shard of it), a name like a user's.
        offsets: of each event, rising, in [0, 2^128).

    Raises:
        RequestError: when built of anything else.
    """

    name: str
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        check_name("source", self.name)
        last = -1
        for offset in self.offsets:
            if not last < offset <= MAX_OFFSET:
                raise RequestError("offsets", f"{offset} must be above {last} and at most 2^128 - 1")
            last = offset


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did.

    Attributes:
        sequence: the user's events ever accepted, these included; the next event gets this number.
        accepted: events of the batch that were stored.
        duplicates: events that were dropped, being equal to a recent one or known from their source.
        late: accepted events that are older than one in front of them.
        replayed: the key was known, and the numbers are those of the first time; or all offsets were. Nothing
            was stored now.
        events: the accepted events with the times that `load` gives them; none on a replay.
    """

    sequence: int
    accepted: int
    duplicates: int
    late: int
    replayed: bool = False
    events: EventBatch = field(
        default_factory=lambda: EventBatch(*(np.zeros(0, np.int64) for _ in range(3))),
        compare=False,
        repr=False,
    )


@dataclass(frozen=True, slots=True, eq=False)
class StoredHistory:
    """The newest events of a user, oldest first, in arrays of the caller's own.

    Attributes:
        items, timestamps, actions: int64 [h]; times never decrease, and never change once stored.
        sent_timestamps: int64 [h], the times as they were sent: smaller where an event came late.
        first_sequence: events of the user in front of `items[0]`, those no longer stored included.
        total: events of the user ever accepted; `first_sequence + h`.
    """

    items: Int64s
    timestamps: Int64s
    actions: Int64s
    sent_timestamps: Int64s
    first_sequence: int
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What is known of a user besides events: int64 [C], one value per profile slot, and the clock offset.

    Raises:
        RequestError: more than 1,024 values, not int64, or an offset of more than a day.
    """

    contextual: Int64s
    utc_offset_s: int = 0

    def __post_init__(self) -> None:
        _check_column("contextual", self.contextual)
        if len(self.contextual) > MAX_CONTEXTUAL:
            raise RequestError("contextual", f"has {len(self.contextual)} values, limit {MAX_CONTEXTUAL}")
        if not isinstance(self.utc_offset_s, int):
            raise RequestError("utc_offset_s", f"{self.utc_offset_s!r} must be a whole number")
        if not -MAX_UTC_OFFSET_S <= self.utc_offset_s <= MAX_UTC_OFFSET_S:
            reason = f"{self.utc_offset_s} is outside [-{MAX_UTC_OFFSET_S}, {MAX_UTC_OFFSET_S}] seconds"
            raise RequestError("utc_offset_s", reason)


class HistoryStore(ABC):
    """Histories, profiles and idempotency keys of every user of every tenant, on stable storage.

    Any thread may call any method; one process writes. An answer is the caller's to keep: later calls change
    none. What `append`, `set_profile` and `delete` did is there after the process is killed at any moment,
    whole or not at all, and every later call sees it; what survives a failure of the machine, `describe`
    says. "No" is an empty history, an empty profile or a 0: no user is unknown. Users of different tenants
    never meet, whatever their names. A user keeps the newest `keep_events` events; sequence numbers count
    the dropped ones.

    Every method raises RequestError for a bad name (see `core.ids`), NotReadyError after `close`,
    OverloadError when another process held the store for longer than `timeout_ms` or a server cannot be
    reached, and BackendError, which names the store, when it is full, damaged or was removed. A failed call
    has changed nothing, with one exception: where the connection to a server broke during a write, that
    write may have been done.
    """

    @abstractmethod
    def append(
        self,
        tenant: str,
        user: str,
        events: EventBatch,
        key: str | None = None,
        dedupe: bool | None = None,
        source: Source | None = None,
    ) -> Appended:
        """Store `events` behind those the user has; they are durable when this returns.

        Order: events keep the order of their arrival. One that is older than any in front of it is late: its
        time becomes the newest time so far, its own is kept in `sent_timestamps`. So stored times never
        decrease and whatever was derived from older events stays exact.

        Duplicates: with `dedupe`, an event that equals one of the `dedupe_events` accepted before it (item,
        sent time and actions) is dropped. By default that is so exactly when there is no key: a retry with
        a key is recognised by it, and two equal events under different keys are two events. A retry without
        a key of a batch longer than `dedupe_events` is stored twice.

        Args:
            key: the client's idempotency key, a name like a user's. The same key with the same events
                stores nothing and answers as the first time. Only the newest `keys_per_user` of a user are
                known, and none after `delete`.
            source: the user's last offset in a source is kept with the events, in one step. Events at or
                in front of it are known and dropped, so that a stream may deliver again what was appended,
                in batches cut anywhere. The offsets of the last `SOURCES_PER_USER` sources are kept, until
                `delete`; other appends do not push them out.

        Raises:
            RequestError: also where `key` was used for other events, or `source` is of so many others.
        """

    @abstractmethod
    def load(self, tenant: str, user: str, newest: int) -> StoredHistory:
        """The newest `newest` events that are kept, from one moment; reads little more than those.

        Raises:
            RequestError: also for `newest` below 0.
        """

    @abstractmethod
    def profile(self, tenant: str, user: str) -> Profile:
        """The profile that was set last; an empty one, with offset 0, if none was."""

    @abstractmethod
    def set_profile(self, tenant: str, user: str, profile: Profile) -> None:
        """Put `profile` in the place of the user's present one."""

    @abstractmethod
    def delete(self, tenant: str, user: str) -> int:
        """Remove events, profile and keys of the user; returns the number of events that were kept.

        The user's sequence numbers start at 0 again. Files may hold the bytes until `checkpoint`.
        """

    @abstractmethod
    def count(self) -> int:
        """Users with anything stored."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Bring what is stored from logs into the main file, where the back-end has such; changes no answer.

        Does what it can while others read; the next one does the rest.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for the log at start: back-end, place without secrets, what a crash can lose."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the calls in progress and give everything back; again, a no-op."""


def _check_column(name: str, column: Int64s) -> None:
    if not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1:
        shown = f"{column.dtype} {column.shape}" if isinstance(column, np.ndarray) else type(column).__name__
        raise RequestError(name, f"must be a one-dimensional int64 array, is {shown}")


def _check_range(name: str, column: Int64s, high: int) -> None:
    low_value, high_value = int(column.min()), int(column.max())
    if low_value < 0 or high_value > high:
        raise RequestError(name, f"{low_value if low_value < 0 else high_value} is outside [0, {high}]")
