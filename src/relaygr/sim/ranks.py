"""Rankings that wait: the order and the batches of the engine's queue, without its threads."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from relaygr.sim.visit import Visit

Cost = Callable[[Visit], float]
"""Milliseconds that scoring a visit will take, rather more than less."""

_REFRESHED = 8  # visits whose prefixes are looked for again before a batch is made
_LOOK_AHEAD = 64  # visits whose deadlines are looked at


class RankQueue:
    """Earliest deadline first, equal deadlines in order of arrival; visits are taken in batches."""

    __slots__ = ("_arrivals", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Visit]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Visit]:
        return (visit for _, _, visit in self._heap)

    def put(self, visit: Visit) -> None:
        self._arrivals += 1
        heapq.heappush(self._heap, (visit.rank_by_s, self._arrivals, visit))

    def clear(self) -> list[Visit]:
        """Everybody, and nobody waits any more."""
        visits = list(self)
        self._heap.clear()
        return visits

    def batch(self, requests: int, tokens: int, now_s: float, cost: Cost) -> list[Visit]:
        """The most urgent, at most `requests`, that compute at most `tokens` if they are several.

        Batch mates also end where they would make the most urgent late that is not yet.
        """
        batch: list[Visit] = []
        spent_s = 0.0
        heap = self._heap
        while heap and len(batch) < requests:
            visit = heap[0][2]
            tokens -= visit.missing
            if len(heap) > 1 or batch:
                spent_s += cost(visit) / 1000
            late = bool(batch) and now_s <= batch[0].rank_by_s < now_s + spent_s
            if batch and (tokens < 0 or late):
                break
            heapq.heappop(heap)
            batch.append(visit)
        return batch

    def look_again(self, locate: Callable[[Visit], int]) -> None:
        """Prefixes may have come since: note what is missing of the most urgent."""
        if len(self._heap) > 1:
            for *_, visit in heapq.nsmallest(_REFRESHED, self._heap):
                if visit.missing:
                    visit.missing = visit.tokens - locate(visit)

    def share_ms(self, now_s: float, cost: Cost) -> float:
        """What the most urgent may take so that those behind it can meet their deadlines, too.

        All of its own time if everybody fits. Otherwise it gives up what is missing, but keeps an equal
        share of the time that there is.
        """
        if len(self._heap) < 2:
            return float("inf")
        nearest = [item[2] for item in heapq.nsmallest(_LOOK_AHEAD, self._heap)]
        visits = [visit for visit in nearest if visit.rank_by_s > now_s]
        spent_ms, slack_ms, equal_ms = 0.0, float("inf"), float("inf")
        for place, visit in enumerate(visits, start=1):
            left_ms = (visit.rank_by_s - now_s) * 1000
            spent_ms += cost(visit)
            slack_ms, equal_ms = min(slack_ms, left_ms - spent_ms), min(equal_ms, left_ms / place)
        if slack_ms >= 0:  # also without visits
            return float("inf")
        return max(cost(visits[0]) + slack_ms, equal_ms)
