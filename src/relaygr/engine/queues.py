"""A bounded queue in order of deadlines; entries that nobody waits for any more cost nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from relaygr.engine.engine import Engine
from relaygr.engine.jobs import Cost, Flight, Job, RankJob

Entry = TypeVar("Entry", bound=Job[Any])

_REFRESHED = 8  # jobs whose prefixes are looked for again before a batch is made
_LOOK_AHEAD = 64  # jobs whose deadlines are looked at


class DeadlineQueue(Generic[Entry]):
    """What is in a rush first, then the earliest deadline, then the first to come. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heap: list[tuple[int, float, int, Entry]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        """Entries that somebody waits for."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Entry]:
        return (job for *_, job in self._heap if job.waiting)

    def put(self, job: Entry) -> bool:
        """Add a job; False when the queue is full of jobs that somebody waits for."""
        if len(self._heap) >= self.limit:
            self._sort()
        if len(self._heap) >= self.limit:
            return False
        self._arrivals += 1
        job.arrival = self._arrivals
        self.back(job)
        return True

    def back(self, job: Entry) -> None:
        """Put back a job that was taken, in its old place among equal deadlines, whatever the limit."""
        heapq.heappush(self._heap, (job.rush, job.urgent_s, job.arrival, job))

    def head(self) -> Entry | None:
        """The most urgent job that somebody waits for; it stays."""
        while self._heap:
            job = self._heap[0][3]
            if job.waiting:
                return job
            heapq.heappop(self._heap)
        return None

    def take(self) -> Entry | None:
        """The most urgent job that somebody waits for, no longer in the queue."""
        job = self.head()
        if job is not None:
            heapq.heappop(self._heap)
        return job

    def _sort(self) -> None:
        """Drop what nobody waits for and put the others in order."""
        self._heap = [(job.rush, job.urgent_s, job.arrival, job) for job in self]
        heapq.heapify(self._heap)


class RankQueue(DeadlineQueue[RankJob]):
    """Rank jobs, taken in batches."""

    def batch(
        self, requests: int, tokens: int, now_s: float = 0.0, cost: Cost | None = None
    ) -> list[RankJob]:
        """The most urgent jobs, at most `requests`, that compute at most `tokens` if there are several.

        With `cost`, batch mates also end where they would make the most urgent job late that is not yet.
        """
        batch: list[RankJob] = []
        spent_s = 0.0
        while len(batch) < requests and (job := self.head()) is not None:
            tokens -= job.missing
            spent_s += 0.0 if cost is None else cost(job) / 1000
            late = cost is not None and bool(batch) and now_s <= batch[0].budget_s < now_s + spent_s
            if batch and (tokens < 0 or late):
                break
            heapq.heappop(self._heap)
            batch.append(job)
        return batch

    def look_again(self, locate: Callable[[RankJob], int]) -> None:
        """Prefixes may have come since their rankings were queued: note what is cached of the most urgent."""
        if len(self._heap) > 1:
            for *_, job in heapq.nsmallest(_REFRESHED, self._heap):
                if job.waiting and job.missing:
                    job.cached = locate(job)

    def share_ms(self, now_s: float, cost: Cost) -> float:
        """What the most urgent job may take so that those behind it can meet their budgets, too.

        All of its own time if everybody fits. Otherwise it gives up what is missing, but keeps an equal
        share of the time that there is.
        """
        jobs = [item[3] for item in heapq.nsmallest(_LOOK_AHEAD, self._heap)]
        jobs = [job for job in jobs if job.waiting and job.budget_s > now_s]
        spent_ms, slack_ms, equal_ms = 0.0, float("inf"), float("inf")
        for place, job in enumerate(jobs, start=1):
            left_ms = (job.budget_s - now_s) * 1000
            spent_ms += cost(job)
            slack_ms, equal_ms = min(slack_ms, left_ms - spent_ms), min(equal_ms, left_ms / place)
        if slack_ms >= 0:  # also without jobs
            return float("inf")
        return max(cost(jobs[0]) + slack_ms, equal_ms)

    def spare_s(self, requests: int, wait_s: float, now_s: float) -> float:
        """How long a batch of up to `requests` may still wait for batch mates; not positive if it may not.

        No job waits longer than `wait_s`, nor past the middle between its arrival and the end of its budget.
        """
        jobs = list(self)
        if not jobs or len(jobs) >= requests:
            return 0.0
        return min(min(job.queued_s + wait_s, (job.queued_s + job.budget_s) / 2) for job in jobs) - now_s


class FlightQueue(DeadlineQueue[Flight]):
    """Flights between their steps; each user has at most one that later signals can join."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._by_owner: dict[tuple[str, str], Flight] = {}

    def put(self, job: Flight) -> bool:
        if not super().put(job):
            return False
        self._by_owner[job.owner] = job
        return True

    def join(self, signal: Flight) -> Flight | None:
        """The user's flight, which now serves `signal` too; None if there is none."""
        flight = self._by_owner.get(signal.owner)
        if flight is None or not flight.waiting:
            return None
        # What is done of a shorter history is the beginning of the longer one.
        if signal.history.sequence >= flight.history.sequence:
            flight.history = signal.history
        flight.deadline_s = max(flight.deadline_s, signal.deadline_s)
        if signal.deadline_s < flight.urgent_s:
            flight.urgent_s = signal.deadline_s
            self._sort()
        return flight

    def next(self, engine: Engine) -> Flight | None:
        """The flight to go on with; None if all that there are wait for the disk, which those do last."""
        flight = self.head()
        waits = flight is not None and flight.fetching and not engine.below.ready(flight.owner)
        return None if waits else flight

    def flying(self, owner: tuple[str, str]) -> bool:
        """Whether a signal of the user could join a flight."""
        flight = self._by_owner.get(owner)
        return flight is not None and flight.waiting

    def land(self, flight: Flight) -> None:
        """Nothing joins it any more."""
        if self._by_owner.get(flight.owner) is flight:
            del self._by_owner[flight.owner]
