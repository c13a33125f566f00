"""What an append changes, decided from what is stored and without a back-end; nothing is written here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from relaygr.config.settings import StoreConfig
from relaygr.core.errors import RequestError
from relaygr.core.ids import check_name
from relaygr.data.stores.interface import Appended, EventBatch, Int64s, Source
from relaygr.data.stores.layout import (
    CHUNK_EVENTS,
    Head,
    KeyRing,
    Rows,
    chunk_numbers,
    content_digest,
    pack_chunk,
    unpack_chunks,
)


@dataclass(frozen=True, slots=True)
class AppendCall:
    """One append with its arguments checked.

    Attributes:
        window: recent events that a new one is compared with; 0 stores whatever comes.
        content: digest of the events, with a key only.
        source: where the events come from.
    """

    events: EventBatch
    key: str | None
    content: bytes
    window: int
    source: Source | None = None

    @classmethod
    def of(
        cls,
        events: EventBatch,
        key: str | None,
        dedupe: bool | None,
        source: Source | None,
        settings: StoreConfig,
    ) -> AppendCall:
        """RequestError unless `key` is None or a name, or if `source` is of another number of events."""
        if source is not None and len(source.offsets) != len(events):
            raise RequestError("offsets", f"has {len(source.offsets)} values for {len(events)} items")
        if key is not None:
            check_name("key", key)
        wanted = dedupe if dedupe is not None else key is None
        content = b"" if key is None else content_digest(events)
        return cls(events, key, content, settings.dedupe_events if wanted else 0, source)

    @property
    def looks_back(self) -> int:
        """How many of the newest events must be read: those compared with, or one, for its chunk."""
        return max(self.window, 1)

    @property
    def reads_ring(self) -> bool:
        return self.key is not None or self.source is not None

    def behind(self, offset: int) -> AppendCall:
        """The part of it that comes after `offset` of its source."""
        assert self.source is not None
        known = bisect_right(self.source.offsets, offset)
        if not known:
            return self
        columns = (self.events.items, self.events.timestamps, self.events.actions)
        rest = EventBatch(*(column[known:] for column in columns))
        return replace(self, events=rest, source=Source(self.source.name, self.source.offsets[known:]))


@dataclass(frozen=True, slots=True)
class Stored:
    """What a back-end read for an append: `blobs` are the chunks of `head.span(call.looks_back)`."""

    head: Head
    ring: bytes | None
    blobs: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, all or nothing; without a `head` there is nothing to write.

    Attributes:
        chunks: (number, blob) to put.
        dropped: numbers of the chunks to remove.
        ring: to put, unless None.
    """

    answer: Appended
    head: Head | None = None
    chunks: tuple[tuple[int, bytes], ...] = ()
    dropped: range = range(0)
    ring: bytes | None = None


def plan_append(call: AppendCall, stored: Stored, settings: StoreConfig) -> Plan:
    """Decide an append.

    Raises:
        RequestError: the key was used for other events.
        BackendError: what is stored is damaged.
    """
    if not call.reads_ring:
        return _plan_events(call, stored, settings)
    ring, rest = KeyRing(stored.ring), call
    known = ring.find(call.key, call.content) if call.key is not None else None
    if known is not None:
        return Plan(known)
    if call.source is not None:
        rest = call.behind(ring.offset(call.source.name))
        if len(call.events) and not len(rest.events):
            return Plan(Appended(stored.head.total, 0, len(call.events), 0, replayed=True))
    plan = _plan_events(rest, stored, settings)
    answer = replace(plan.answer, duplicates=plan.answer.duplicates + len(call.events) - len(rest.events))
    if rest.source is not None and rest.source.offsets:
        ring.mark(rest.source.name, rest.source.offsets[-1], answer.sequence)
    if call.key is not None:
        ring.add(call.key, call.content, answer, settings.keys_per_user)
    return Plan(answer, plan.head or stored.head, plan.chunks, plan.dropped, ring.packed())


def _plan_events(call: AppendCall, stored: Stored, settings: StoreConfig) -> Plan:
    head = stored.head
    tail = unpack_chunks(head, chunk_numbers(head.span(call.looks_back)), stored.blobs)
    kept = _kept(call, tail.rows[len(tail.rows) - len(head.span(call.window)) :])
    columns = (call.events.items, call.events.timestamps, call.events.actions)
    rows = np.stack(columns, axis=1)[kept]
    duplicates = len(call.events) - len(rows)
    if not len(rows):
        return Plan(Appended(head.total, 0, duplicates, 0))
    times = Rows(head.total, rows, head.newest_s).times()
    late = int(np.count_nonzero(rows[:, 1] < times))
    total = head.total + len(rows)
    after = Head(max(head.first, total - settings.keep_events), total, int(times[-1]))
    events = EventBatch(rows[:, 0].copy(), times, rows[:, 2].copy())
    return Plan(
        Appended(total, len(rows), duplicates, late, events=events),
        after,
        _chunks(head, after, tail, rows, times),
        range(head.first // CHUNK_EVENTS, min(after.first, head.total + CHUNK_EVENTS - 1) // CHUNK_EVENTS),
    )


def _kept(call: AppendCall, recent: Int64s) -> npt.NDArray[np.bool_]:
    """Which events of the batch to store [n], given the `recent` rows that they are compared with.

    An event is compared with the `window` accepted ones in front of it, those of the batch included.
    """
    kept = np.ones(len(call.events), np.bool_)
    if not call.window:
        return kept
    place = len(recent)
    seen = {tuple(row): at for at, row in enumerate(recent.tolist())}
    events = zip(
        call.events.items.tolist(), call.events.timestamps.tolist(), call.events.actions.tolist(), strict=True
    )
    for at, event in enumerate(events):
        if place - seen.get(event, -call.window - 1) <= call.window:
            kept[at] = False
        else:
            seen[event] = place
            place += 1
    return kept


def _chunks(
    head: Head, after: Head, tail: Rows, rows: Int64s, times: Int64s
) -> tuple[tuple[int, bytes], ...]:
    """The chunks that get events, but for those that are dropped at once."""
    chunks = []
    for number in chunk_numbers(range(max(head.total, after.first), after.total)):
        begin, end = number * CHUNK_EVENTS, (number + 1) * CHUNK_EVENTS
        if begin < head.total:  # the last chunk so far, which is not full
            old = tail.rows[begin - head.total :]
            base_s = int(tail.times()[begin - head.total - 1]) if begin > tail.first else tail.base_s
            chunks.append(
                (number, pack_chunk(number, base_s, np.concatenate([old, rows[: end - head.total]])))
            )
        else:
            new = begin - head.total
            base_s = int(times[new - 1]) if new else head.newest_s
            chunks.append((number, pack_chunk(number, base_s, rows[new : new + CHUNK_EVENTS])))
    return tuple(chunks)
