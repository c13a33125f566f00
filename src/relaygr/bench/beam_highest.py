"""The highest rate at which P99 keeps a target: loads at levels of rates, and votes near the edge."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import msgspec

from relaygr.bench.beam_load import Door, RatePoint, WallWatch, Watch, play, saturated
from relaygr.bench.edge import Edge, find_edge

_STEP = 1.1
_FARTHEST, _MOST_LOADS = 40, 100
_SATURATED_PART = 1 / 15  # of the time
_LEAST_SHARE, _MOST_SHARE = 0.05, 0.95
_FEWEST = 20  # requests of a load that says anything
_DISTURBED = 0.1  # cores; with others on more, what is slow, or fails, is tried again
_AGAIN = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """What a search may take.

    Attributes:
        limit_s: in all; no load begins that would end after it.
        targets: a load takes at least so many times the target.
        requests: that a load has where they fit into `part` of the time; it has 20 in any case.
        votes: by which both sides of the edge must lead.
    """

    limit_s: float
    targets: float = 5.0
    requests: int = 200
    part: float = 0.25
    votes: int = 2


class RateFound(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that keeps the target lies between two, as far as it was searched for.

    Attributes:
        sids: of the catalogue.
        alone_ms: median of requests that have the machine to themselves.
        saturated_per_s: answers while requests never run out, more than which nothing keeps for long.
        keeps_per_s: the highest rate with more votes for it than against it; None if no load kept the target.
        fails_per_s: the lowest above it with more votes against it; None if none failed.
        settled: whether both lead by the votes that were asked for.
        requests: of the votes: loads that passed at `keeps_per_s` or above, that failed at `fails_per_s` or
            below.
        points: all loads.
    """

    name: str
    sids: int
    target_ms: float
    alone_ms: float
    saturated_per_s: float
    keeps_per_s: float | None
    fails_per_s: float | None
    settled: bool
    requests: tuple[int, int]
    points: tuple[RatePoint, ...]

    @property
    def below_per_s(self) -> float:
        """What it does not keep."""
        return self.saturated_per_s if self.fails_per_s is None else self.fails_per_s

    @property
    def told(self) -> str:
        """Between what the rate lies, and whether that is settled."""
        if self.keeps_per_s is None:
            return f"< {self.below_per_s:.2f}"
        if self.fails_per_s is None:
            return f">= {self.keeps_per_s:.2f}"
        return f"{self.keeps_per_s:.2f} - {self.fails_per_s:.2f}{'' if self.settled else ' ?'}"


def highest_rate(
    name: str,
    sids: int,
    door: Door,
    target_ms: float,
    alone_ms: float,
    effort: Effort,
    seed: int,
    first: int,
    watch: Watch | None = None,
) -> RateFound:
    """Search from where a queue before one server of even service would keep the target.

    Args:
        first: number of the first request; later ones follow.
    """
    search = _Search(door, target_ms, effort, seed, first, watch if watch is not None else WallWatch())
    saturated_per_s = search.saturate(alone_ms)
    edge = search.edge()
    keeps = None if edge.level is None else search.rate(edge.level)
    fails = None if edge.fails is None else search.rate(edge.fails)
    passed = [one.sent for one in edge.trials if one.passes and keeps and one.rate_per_s >= keeps]
    failed = [one.sent for one in edge.trials if not one.passes and fails and one.rate_per_s <= fails]
    return RateFound(
        name=name,
        sids=sids,
        target_ms=target_ms,
        alone_ms=alone_ms,
        saturated_per_s=saturated_per_s,
        keeps_per_s=keeps,
        fails_per_s=fails,
        settled=edge.bracketed,
        requests=(sum(passed), sum(failed)),
        points=tuple(search.points),
    )


def likely_share(slack: float) -> float:
    """Of what it can do at most, at which a server whose requests arrive at random keeps P99.

    Args:
        slack: how many times the service a request may wait.

    The tail of the wait before one server of even service, in heavy traffic: p exp(-2 slack (1 - p) / p).
    """
    low, high = _LEAST_SHARE, _MOST_SHARE
    while high - low > 1e-3:
        share = (low + high) / 2
        late = share * math.exp(-2 * max(slack, 0.0) * (1 - share) / share)
        low, high = (share, high) if late <= 0.01 else (low, share)
    return low


class _Search:
    """The loads of a search; level l is a rate of start * _STEP ** l."""

    def __init__(
        self, door: Door, target_ms: float, effort: Effort, seed: int, first: int, watch: Watch
    ) -> None:
        self._door, self._target_ms, self._effort, self._watch = door, target_ms, effort, watch
        self._seed, self._number = seed, first
        self._end_s = watch.now_s() + effort.limit_s
        self._start = math.nan
        self.points: list[RatePoint] = []

    def saturate(self, alone_ms: float) -> float:
        """Answers a second at most; the search begins below that."""
        seconds, most = self._effort.limit_s * _SATURATED_PART, self._effort.requests
        best_per_s = 0.0
        for _ in range(_AGAIN + 1):
            began_s, others_s = self._watch.now_s(), self._watch.others_s()
            per_s, sent = saturated(self._door, seconds, most, self._number, self._watch)
            self._number += sent
            best_per_s = max(best_per_s, per_s)
            others_s = self._watch.others_s() - others_s
            if others_s <= _DISTURBED * (self._watch.now_s() - began_s):
                break
        self._start = best_per_s * likely_share((self._target_ms - alone_ms) / 1000 * best_per_s)
        return best_per_s

    def edge(self) -> Edge[RatePoint]:
        if not self._more(found=False):
            return Edge(level=None, fails=None, bracketed=False, trials=(), runs=())
        return asyncio.run(
            find_edge(self._attempt, -_FARTHEST, _FARTHEST, _MOST_LOADS, self._more, votes=self._effort.votes)
        )

    def rate(self, level: int) -> float:
        return float(self._start * _STEP**level)

    async def _attempt(self, level: int) -> RatePoint:
        point = self._play(level)
        for _ in range(_AGAIN):
            # Failing proves nothing while others compute.
            disturbed = not point.passes and point.others_cores > _DISTURBED
            if not disturbed or not self._more(found=True):
                break
            point = self._play(level)
        return point

    def _play(self, level: int) -> RatePoint:
        rate, target_ms = self.rate(level), self._target_ms
        count = math.ceil(rate * self._seconds(rate))
        seed = (self._seed, len(self.points))
        point = play(self._door, rate, count, seed, self._number, 2 * target_ms, target_ms, self._watch)
        self._number += count + 1
        self.points.append(point)
        return point

    def _more(self, found: bool) -> bool:
        """Whether there is time for another load; what was found makes no difference."""
        return self._end_s - self._watch.now_s() >= self._seconds(self._start)

    def _seconds(self, rate: float) -> float:
        effort = self._effort
        enough_s = min(effort.requests / rate, effort.part * effort.limit_s)
        return max(enough_s, effort.targets * self._target_ms / 1000, _FEWEST / rate)
