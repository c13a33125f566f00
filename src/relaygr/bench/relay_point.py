"""What one stretch of a relay load came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np

from relaygr.bench.relay_play import Heard, Played
from relaygr.bench.relay_script import Script
from relaygr.sim.protocol import Outcome, Share
from relaygr.sim.tally import Count, counts
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import Variant

_EARLY, _EASY = 0.4, 0.7
_TROUBLES = {0: "no connection", -1: "unsent", -2: "unanswered"}


class Ranked(msgspec.Struct):
    """What is read of a ranking."""

    path: str
    served_tokens: int
    queue_ms: float
    compute_ms: float


class _Signalled(msgspec.Struct):
    """What is read of the answer to a prefix signal."""

    admission: str
    reason: str


READ_RANKED = msgspec.json.Decoder(Ranked)
_READ_SIGNALLED = msgspec.json.Decoder(_Signalled)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds; 0 without any."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = np.fromiter(values, np.float64)
        if not len(found):
            return cls()
        p50, p90, p99, most = np.percentile(found, (50, 90, 99, 100)).round(3).tolist()
        return cls(p50=p50, p90=p90, p99=p99, max=most)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of a load on real servers; the warm-up is in none of the numbers.

    Attributes:
        rate: requests a second; seconds: that the load took, without `skipped_s` of its schedule when no
            server had anything to do.
        planned: requests that were to count; `requests`: those of them that were due until the load ended;
            `ended`: it was given up, because too many had failed for the planned number to pass.
        good: scores of the whole history within the ranking budget; a variant that shortens histories on
            purpose counts any history. valid: scores within the request's budget.
        latency: of rankings from the time they were due; queue, compute: of that, as the server says;
            overhead: the rest: connections, parsing, event loops.
        send_lag: how late the client sent.
        paths: what served the rankings, or why none came; signals: what became of prefix signals.
        served_mean: history tokens that scores rest on.
    """

    seed: int
    rate: float
    length: int
    planned: int
    requests: int
    good: int
    valid: int
    ended: bool
    seconds: float
    skipped_s: float
    latency: Spread
    queue: Spread
    compute: Spread
    overhead: Spread
    send_lag: Spread
    paths: tuple[Count, ...]
    signals: tuple[Count, ...]
    served_mean: float
    events_failed: int

    @property
    def share(self) -> Share:
        """As the protocol judges it; what was given up has failed."""
        count = max(self.requests, 1)
        good = min(self.good / count, 0.0 if self.ended else 1.0)
        return Share(
            seed=self.seed,
            requests=self.requests,
            good=good,
            valid=self.valid / count,
            p99_ms=self.latency.p99,
            served=self.served_mean,
        )


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A load that was tried, with a point a seed; `planned` seeds, fewer if enough of them failed.

    Attributes:
        b_rank_ms: the ranking budget.
        failed_before: points of the same load, with the same draws, from runs that failed before this one.
    """

    variant: str
    rate: float
    length: int
    planned: int
    b_rank_ms: float
    points: tuple[Point, ...]
    failed_before: tuple[Point, ...] = ()

    @property
    def outcome(self) -> Outcome:
        return Outcome(
            variant=self.variant,
            rate=self.rate,
            length=self.length,
            planned=self.planned,
            shares=tuple(point.share for point in self.points),
        )

    @property
    def passes(self) -> bool:
        return self.outcome.passes

    @property
    def far(self) -> bool:
        """Whether it failed so early that the edge is not near."""
        return any(point.ended and point.requests < _EARLY * point.planned for point in self.points)

    @property
    def easy(self) -> bool:
        """Whether it passed so well that the edge is not near."""
        return self.passes and self.p99_ms < _EASY * self.b_rank_ms

    @property
    def requests(self) -> int:
        return sum(point.requests for point in self.points)

    @property
    def good_share(self) -> float:
        return sum(point.good for point in self.points) / max(self.requests, 1)

    @property
    def p99_ms(self) -> float:
        """Median over the seeds."""
        return float(np.median([point.latency.p99 for point in self.points])) if self.points else 0.0


class Rating(msgspec.Struct, frozen=True):
    """One ranking, judged."""

    path: str
    good: bool
    valid: bool
    served: int
    queue_ms: float
    compute_ms: float


def rate_one(heard: Heard, tokens: int, begun_s: float, script: Script, variant: Variant) -> Rating:
    """Judge a ranking of `tokens` history tokens whose trigger was at `begun_s`."""
    limits = script.limits
    if heard.status != 200:
        return Rating(_TROUBLES.get(heard.status, str(heard.status)), False, False, 0, 0.0, 0.0)
    answer = READ_RANKED.decode(heard.ranked)
    in_pipe = 1000 * (heard.done_s - begun_s) <= limits.b_pipe_ms
    in_rank = 1000 * heard.latency_s <= limits.b_rank_ms
    # A baseline that shortens is asked for its time only; what it read is printed beside it.
    whole = answer.served_tokens >= tokens or (variant.ladder and not variant.relay)
    valid = in_pipe and answer.path != "degraded"
    return Rating(
        answer.path,
        valid and in_rank and whole,
        valid,
        answer.served_tokens,
        answer.queue_ms,
        answer.compute_ms,
    )


def make_point(played: Played, script: Script, variant: Variant, traffic: Traffic) -> Point:
    """Count what was heard; of a load that was given up, what was sent before."""
    pairs = [
        (heard, rate_one(heard, request.tokens, request.time_s, script, variant))
        for heard, request in zip(played.heard, script.requests, strict=True)
        if request.counted and not (played.ended and heard.status == -1)
    ]
    answered = [(heard, rating) for heard, rating in pairs if heard.status == 200]
    signals = Counter(_signal(heard) for heard, _ in pairs) if variant.relay else Counter()
    count = max(len(pairs), 1)
    return Point(
        seed=traffic.seed,
        rate=traffic.rate,
        length=traffic.length,
        planned=traffic.requests,
        requests=len(pairs),
        good=sum(rating.good for _, rating in pairs),
        valid=sum(rating.valid for _, rating in pairs),
        ended=played.ended,
        seconds=round(played.seconds, 2),
        skipped_s=round(played.skipped_s, 2),
        latency=Spread.of(1000 * heard.latency_s for heard, _ in answered),
        queue=Spread.of(rating.queue_ms for _, rating in answered),
        compute=Spread.of(rating.compute_ms for _, rating in answered),
        overhead=Spread.of(
            1000 * heard.latency_s - rating.queue_ms - rating.compute_ms for heard, rating in answered
        ),
        send_lag=Spread.of(1000 * (heard.sent_s - heard.due_s) for heard, _ in pairs if heard.status != -1),
        paths=tuple(counts(Counter(rating.path for _, rating in pairs))),
        signals=tuple(counts(signals)),
        served_mean=round(sum(rating.served for _, rating in pairs) / count, 1),
        events_failed=sum(heard.events_status != 200 for heard, _ in pairs),
    )


def _signal(heard: Heard) -> str:
    if heard.signal_status != 200:
        return _TROUBLES.get(heard.signal_status, str(heard.signal_status))
    answer = _READ_SIGNALLED.decode(heard.signalled)
    return answer.reason or answer.admission
