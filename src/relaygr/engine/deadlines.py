"""Deadlines fire on a thread of their own, not at the end of whatever batch is running."""

from __future__ import annotations

import heapq
import threading
from typing import Any

from relaygr.core.clock import Clock
from relaygr.engine.jobs import Job

_SWEEP = 1024  # finished jobs are dropped from the heap when it has grown by so many


class DeadlineTimer:
    """Expires each watched job at its deadline unless it is answered by then.

    With a clock that does not follow real time nothing fires by itself; call `fire`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Job[Any]]] = []
        self._count = self._swept = 0
        self._change = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="relaygr-deadlines", daemon=True)
        self._thread.start()

    def watch(self, job: Job[Any]) -> None:
        with self._change:
            self._count += 1
            heapq.heappush(self._heap, (job.deadline_s, self._count, job))
            if self._count - self._swept > _SWEEP + len(self._heap) // 2:
                self._heap = [item for item in self._heap if item[2].waiting]
                heapq.heapify(self._heap)
                self._swept = self._count
            if self._heap and self._heap[0][2] is job:
                self._change.notify()

    def fire(self) -> None:
        """Expire what is due."""
        due: list[Job[Any]] = []
        with self._change:
            now = self._clock.now_s()
            while self._heap and (self._heap[0][0] <= now or not self._heap[0][2].waiting):
                due.append(heapq.heappop(self._heap)[2])
        for job in due:
            job.expire()

    def close(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.fire()
            with self._change:
                if self._stopped:
                    return
                wait = self._heap[0][0] - self._clock.now_s() if self._heap else None
                if wait is None or wait > 0:
                    self._change.wait(wait)
