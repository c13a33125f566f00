"""What an append changes, decided from what is stored and without a back-end; nothing is written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.config.settings import StoreConfig
from relaygr.core.ids import check_name
from relaygr.data.stores.interface import Appended, EventBatch, Int64s
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
    """

    events: EventBatch
    key: str | None
    content: bytes
    window: int

    @classmethod
    def of(
        cls, events: EventBatch, key: str | None, dedupe: bool | None, settings: StoreConfig
    ) -> AppendCall:
        """RequestError unless `key` is None or a name."""
        if key is not None:
            check_name("key", key)
        wanted = dedupe if dedupe is not None else key is None
        content = b"" if key is None else content_digest(events)
        return cls(events, key, content, settings.dedupe_events if wanted else 0)

    @property
    def looks_back(self) -> int:
        """How many of the newest events must be read: those compared with, or one, for its chunk."""
        return max(self.window, 1)


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
    if call.key is None:
        return _plan_events(call, stored, settings)
    ring = KeyRing(stored.ring)
    known = ring.find(call.key, call.content)
    if known is not None:
        return Plan(known)
    plan = _plan_events(call, stored, settings)
    packed = ring.with_key(call.key, call.content, plan.answer, settings.keys_per_user)
    return Plan(plan.answer, plan.head or stored.head, plan.chunks, plan.dropped, packed)


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
