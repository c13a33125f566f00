"""Deadlines fire on a thread of their own, not at the end of whatever batch is running."""

from __future__ import annotations

import heapq
import math
import threading
import weakref
from typing import Any

from relaygr.core.clock import Clock
from relaygr.core.errors import RequestError
from relaygr.engine.jobs import Job

MIN_DEADLINE_MS = 1.0
_SWEEP = 1024  # finished jobs are dropped from the heap when it has grown by so many


def deadline_ms(asked_ms: float | None, default_ms: float, max_ms: float) -> float:
    """The deadline of a request, from now.

    Raises:
        RequestError: the one it names is out of range.
    """
    if asked_ms is None:
        return default_ms
    if not math.isfinite(asked_ms) or not MIN_DEADLINE_MS <= asked_ms <= max_ms:
        raise RequestError("deadline_ms", f"{asked_ms} must be from {MIN_DEADLINE_MS:g} to {max_ms:g}")
    return asked_ms


class DeadlineTimer:
    """Expires each watched job at its deadline unless it is answered by then.

    A job is not kept alive by being watched. One whose deadline moves back is watched again. With a clock
    that does not follow real time nothing fires by itself; call `fire`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, weakref.ref[Job[Any]]]] = []
        self._count = self._swept = 0
        self._change = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="relaygr-deadlines", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Watches held, some of them of jobs that have ended."""
        return len(self._heap)

    def watch(self, job: Job[Any]) -> None:
        with self._change:
            self._count += 1
            mine = (job.deadline_s, self._count, weakref.ref(job))
            heapq.heappush(self._heap, mine)
            if self._count - self._swept > _SWEEP + len(self._heap) // 2:
                self._heap = [item for item in self._heap if _wanted(*item)]
                heapq.heapify(self._heap)
                self._swept = self._count
            if self._heap and self._heap[0] is mine:
                self._change.notify()

    def fire(self) -> None:
        """Expire what is due."""
        with self._change:
            due = self._take_due()
        # Outside of the lock, because this runs the callbacks of whoever waits.
        for job in due:
            job.expire()

    def close(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify()
        self._thread.join()

    def _take_due(self) -> list[Job[Any]]:
        now = self._clock.now_s()
        due: list[Job[Any]] = []
        while self._heap and (self._heap[0][0] <= now or not _wanted(*self._heap[0])):
            job = heapq.heappop(self._heap)[2]()
            # The deadline may have moved back since; there is another watch then.
            if job is not None and job.deadline_s <= now:
                due.append(job)
        return due

    def _run(self) -> None:
        while True:
            self.fire()
            with self._change:
                if self._stopped:
                    return
                wait = self._heap[0][0] - self._clock.now_s() if self._heap else None
                if wait is None or wait > 0:
                    self._change.wait(wait)


def _wanted(deadline_s: float, _: int, watched: weakref.ref[Job[Any]]) -> bool:
    job = watched()
    return job is not None and job.waiting and job.deadline_s <= deadline_s
