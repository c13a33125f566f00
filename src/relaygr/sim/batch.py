"""A rank batch: how much history each of it gets, and what it takes."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.relay.fallback import choose
from relaygr.relay.latency import LatencyModel, Pass
from relaygr.sim.visit import Visit
from relaygr.sim.world import World


class Fit:
    """What a server knows of the speed of its passes, and what it makes of it."""

    __slots__ = ("_bucket", "_guard_ms", "_ladder", "_latency")

    def __init__(self, world: World, latency: LatencyModel) -> None:
        self._latency, self._guard_ms = latency, world.budgets.guard_ms
        self._ladder, self._bucket = world.variant.ladder, world.relay.len_bucket_tokens

    def cost_ms(self, visit: Visit) -> float:
        """Of a visit's pass, its usual time."""
        cached = visit.tokens - visit.missing
        return self._latency.usual_ms(visit.missing, cached, visit.request.candidates)

    def tokens(self, visit: Visit, left_ms: float) -> int:
        """Newest tokens to score in the time that is left; all of them where nothing is shortened."""
        if not self._ladder or not visit.missing:
            return visit.tokens
        return choose(
            self._latency,
            tokens=visit.tokens,
            cached=visit.tokens - visit.missing,
            candidates=visit.request.candidates,
            left_ms=left_ms,
            guard_ms=self._guard_ms,
            bucket_tokens=self._bucket,
        ).tokens


class Batch:
    """Rankings that run together; uncut, since nothing is more urgent."""

    __slots__ = ("_ended", "leases", "ms", "shapes", "visits")

    def __init__(self, ended: Callable[[Batch], None]) -> None:
        self._ended = ended
        self.visits: list[Visit] = []
        self.leases: list[ReadLease | WriteLease | None] = []
        self.shapes: list[Pass] = []
        self.ms = 0.0

    def add(self, visit: Visit, lease: ReadLease | WriteLease | None, shape: Pass) -> None:
        self.visits.append(visit)
        self.leases.append(lease)
        self.shapes.append(shape)

    def stopped(self, steps: int) -> None:
        self._ended(self)
