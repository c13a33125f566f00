"""A bounded queue in order of deadlines; entries that nobody waits for any more cost nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from relaygr.engine.jobs import Job

Entry = TypeVar("Entry", bound=Job[Any])


class DeadlineQueue(Generic[Entry]):
    """Earliest deadline first, equal deadlines in order of arrival. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heap: list[tuple[float, int, Entry]] = []
        self._count = 0

    def __len__(self) -> int:
        """Entries that somebody waits for."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Entry]:
        return (job for _, _, job in self._heap if job.waiting)

    def put(self, job: Entry) -> bool:
        """Add a job; False when the queue is full of jobs that somebody waits for."""
        if len(self._heap) >= self.limit:
            self._clean()
        if len(self._heap) >= self.limit:
            return False
        self._count += 1
        heapq.heappush(self._heap, (job.deadline_s, self._count, job))
        return True

    def back(self, job: Entry) -> None:
        """Put back a job that was taken, whatever the limit."""
        self._count += 1
        heapq.heappush(self._heap, (job.deadline_s, self._count, job))

    def take(self) -> Entry | None:
        """The most urgent job that somebody waits for."""
        while self._heap:
            job = heapq.heappop(self._heap)[2]
            if job.waiting:
                return job
        return None

    def _clean(self) -> None:
        self._heap = [item for item in self._heap if item[2].waiting]
        heapq.heapify(self._heap)
