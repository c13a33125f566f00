"""Lanes on a CPU: a few threads copy in both directions, layer by layer, the most urgent first."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

from relaygr.core.clock import Clock
from relaygr.memory.lane import Declined, Haul, Lane, Lanes, LaneStats, Rush, Ticket
from relaygr.memory.lane_queue import Meter, Waiting, carried

log = logging.getLogger("relaygr.memory")

BYTES_PER_S = 2e9  # until copies were measured
QUEUE_MAX = 64  # hauls of one direction


def thread_lanes(threads: int, clock: Clock, queue_max: int = QUEUE_MAX) -> Lanes:
    """Both directions on `threads` threads that they share, so that no store delays a load.

    The threads begin with the first haul, and end with `close`, or when nobody has the lanes any more.

    Raises: ValueError for less than one thread, or no room for a haul.
    """
    if threads < 1 or queue_max < 1:
        raise ValueError(f"threads: {threads} and queue_max: {queue_max} must be at least 1")
    crew = _Crew(threads, clock, queue_max)
    h2d, d2h = ThreadLane(crew, 0), ThreadLane(crew, 1)
    for lane in (h2d, d2h):
        weakref.finalize(lane, crew.close)
    return Lanes(h2d, d2h)


class ThreadLane(Lane):
    """One direction; it ends with the other one."""

    def __init__(self, crew: _Crew, direction: int) -> None:
        self._crew, self._direction = crew, direction

    def launch(
        self, haul: Haul, rush: Rush, deadline_s: float, on_end: Callable[[], None] | None = None
    ) -> Ticket | Declined:
        return self._crew.launch(self._direction, Ticket(haul, rush, deadline_s, on_end))

    def estimate_s(self, nbytes: int, rush: Rush) -> float:
        return self._crew.estimate_s(self._direction, nbytes, rush)

    def passed_by(self) -> None:
        self._crew.passed_by(self._direction)

    def stats(self) -> LaneStats:
        return self._crew.stats(self._direction)

    def close(self) -> None:
        self._crew.close()


class _Picked(NamedTuple):
    """A layer to copy."""

    direction: int
    ticket: Ticket


class _Crew:
    """The threads and queues behind both lanes.

    It knows its lanes not, so that lanes which nobody has any more are collected, and the threads end.
    """

    def __init__(self, threads: int, clock: Clock, queue_max: int) -> None:
        self._wanted, self._clock = threads, clock
        self._queues = (Waiting(queue_max), Waiting(queue_max))
        self._meters = (Meter(BYTES_PER_S), Meter(BYTES_PER_S))
        self._taken: set[Ticket] = set()
        self._threads: set[threading.Thread] = set()
        self._numbers = self._restarts = 0
        self._closed = False
        # Reentrant, because a collector that ends forgotten lanes runs wherever it likes.
        self._change = threading.Condition(threading.RLock())

    def launch(self, direction: int, ticket: Ticket) -> Ticket | Declined:
        meter, queue = self._meters[direction], self._queues[direction]
        with self._change:
            self._tidy()
            if self._closed:
                return meter.refuse(Declined.CLOSED)
            if len(queue) >= queue.limit:
                return meter.refuse(Declined.FULL)
            nbytes = ticket.haul.layers * ticket.haul.layer_bytes
            if self._clock.now_s() + self._estimate_s(direction, nbytes, ticket.rush) > ticket.deadline_s:
                return meter.refuse(Declined.LATE)
            queue.add(ticket)
            while len(self._threads) < self._wanted:
                self._start()
            self._change.notify()
        return ticket

    def estimate_s(self, direction: int, nbytes: int, rush: Rush) -> float:
        with self._change:
            self._tidy()
            return self._estimate_s(direction, nbytes, rush)

    def passed_by(self, direction: int) -> None:
        with self._change:
            self._meters[direction].hope()

    def stats(self, direction: int) -> LaneStats:
        with self._change:
            self._tidy()
            return self._meters[direction].stats(len(self._queues[direction]), self._restarts)

    def close(self) -> None:
        with self._change:
            self._closed = True
            left = [ticket for queue in self._queues for ticket in queue]
            self._change.notify_all()
        # Outside of the lock, because this calls whoever wants to know.
        for ticket in left:
            ticket.cancel("the lane is closed")

    def next(self) -> _Picked | None:
        """The next layer to copy, when there is one; None when the lanes are closed."""
        while True:
            with self._change:
                self._tidy()
                while (picked := self._pick()) is None and not self._closed:
                    self._change.wait()
                    self._tidy()
                if self._closed or picked is None:
                    return None
                in_time = self._clock.now_s() < picked.ticket.deadline_s
                if in_time and picked.ticket.begin():
                    self._taken.add(picked.ticket)
                    return picked
            if not in_time:
                picked.ticket.fail("it was not done in time")

    def copy(self, picked: _Picked) -> None:
        """Copy it; whatever goes wrong is the haul's end only."""
        ticket, began_s = picked.ticket, self._clock.now_s()
        error = carried(ticket)
        spent_s = self._clock.now_s() - began_s
        ticket.copied(error)
        with self._change:
            self._taken.discard(ticket)
            if not error:
                self._meters[picked.direction].copied(ticket.haul.layer_bytes, spent_s)

    def died(self, thread: threading.Thread, picked: _Picked | None) -> None:
        """A thread ended that should not have: its haul has failed, and another takes its place."""
        log.error("a copy thread died; it is replaced")
        if picked is not None and not picked.ticket.finished:
            picked.ticket.copied("the copy thread died")
        with self._change:
            self._threads.discard(thread)
            if picked is not None:
                self._taken.discard(picked.ticket)
            self._restarts += 1
            if not self._closed:
                self._start()

    def _estimate_s(self, direction: int, nbytes: int, rush: Rush) -> float:
        ahead_s = sum(
            queue.ahead_bytes(rush) / meter.bytes_per_s
            for queue, meter in zip(self._queues, self._meters, strict=True)
        )
        return ahead_s / self._wanted + nbytes / self._meters[direction].bytes_per_s

    def _tidy(self) -> None:
        for queue, meter in zip(self._queues, self._meters, strict=True):
            for ticket in queue.drop_finished():
                meter.ended[ticket.state] += 1

    def _pick(self) -> _Picked | None:
        heads = [(direction, queue.head(self._taken)) for direction, queue in enumerate(self._queues)]
        found = [_Picked(direction, ticket) for direction, ticket in heads if ticket is not None]
        return min(found, key=lambda one: one.ticket.rush, default=None)

    def _start(self) -> None:
        self._numbers += 1
        thread = threading.Thread(
            target=_work, args=(self,), name=f"relaygr-copy-{self._numbers}", daemon=True
        )
        self._threads.add(thread)
        thread.start()


def _work(crew: _Crew) -> None:
    picked: _Picked | None = None
    ended = False
    try:
        while (picked := crew.next()) is not None:
            crew.copy(picked)
            picked = None  # a haul's memory is not kept while there is nothing to do
        ended = True
    finally:
        if not ended:
            crew.died(threading.current_thread(), picked)
