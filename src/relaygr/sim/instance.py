"""One instance: takes the two laps of its users, and gives its slots the most urgent work there is."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.relay.gate import Gate
from relaygr.relay.holds import HoldBook
from relaygr.relay.latency import LatencyModel, Pass
from relaygr.relay.loads import Load, LoadMeter
from relaygr.relay.trigger import Reason
from relaygr.sim.batch import Batch, Fit
from relaygr.sim.chunks import ChunkPlans
from relaygr.sim.costs import Noise
from relaygr.sim.flights import Flight, FlightQueue
from relaygr.sim.keeper import Keeper
from relaygr.sim.machine import CHUNK, RANK, Machine, Run
from relaygr.sim.ranks import RankQueue
from relaygr.sim.shelf import Shelf
from relaygr.sim.timeline import Timeline
from relaygr.sim.visit import Visit
from relaygr.sim.world import World

_NOISE_DRAWS = 8  # of a run of many chunks, whose scatter evens out


class Instance:
    """What one process does, minus the arithmetic."""

    def __init__(
        self,
        world: World,
        timeline: Timeline,
        shelf: Shelf,
        latency: LatencyModel,
        plans: ChunkPlans,
        noise: Noise,
        done: Callable[[Visit], None],
    ) -> None:
        self._world, self._timeline, self._latency = world, timeline, latency
        self._plans, self._noise, self._done = plans, noise, done
        self._fit = Fit(world, latency)
        self.holds: HoldBook[int] = HoldBook(world.h_relay_bytes, world.budgets.t_life_ms / 1000)
        self.keeper = Keeper(shelf, self.holds)
        self.gate = Gate(world.trigger, self.holds, world.slots)
        self.meter = LoadMeter()
        self.ranks, self.flights = RankQueue(), FlightQueue()
        self.machine = Machine(timeline, world.slots, self)
        self.computed = self.left = self.wasted = 0
        self._b_p99 = 0

    @property
    def shelf(self) -> Shelf:
        return self.keeper.shelf

    def signal(self, visit: Visit) -> None:
        """The lap of pre-inference: what becomes of it is noted in the visit."""
        now, user = self._timeline.now_s, visit.user
        self._expire(now)
        reason = self._admit(visit, now)
        visit.reason = reason.value
        if reason is not Reason.ADMITTED:
            return
        visit.claimed = True
        found, flight = self.shelf.find(user, visit.prefix), self.flights.of(user)
        if flight is not None:
            visit.outcome = "joined"
            flight.target = max(flight.target, visit.prefix)
            flight.visits.append(visit)
        elif found.device >= visit.prefix:
            visit.outcome, visit.ready_s = "hit", now
            self.gate.refund()
            self.keeper.ready(user, visit.prefix, now)
        else:
            visit.outcome = "compute"
            deadline_s = now + self._world.budgets.lead_default_ms / 1000
            flight = Flight(user, visit.prefix, deadline_s, now, done=found.device)
            flight.visits.append(visit)
            self.flights.put(flight)
            self.machine.poke(CHUNK, deadline_s)

    def rank(self, visit: Visit) -> bool:
        """The lap of ranking; False if too many wait already."""
        now = self._timeline.now_s
        self._expire(now)
        if len(self.ranks) >= self._world.scheduler.rank_queue_max:
            return False
        visit.queued_s = now
        visit.missing = visit.tokens - self._present(visit)
        self.ranks.put(visit)
        self.meter.rank_arrived(now)
        self.machine.poke(RANK)
        return True

    def next_run(self) -> Run | None:
        return self._rank_run() or self._flight_run()

    def pre_wait_ms(self) -> float:
        """Until a new pre-inference would begin, if nothing else came."""
        return 1000 * sum(self._plan_s(flight) for flight in self.flights)

    def load(self) -> Load:
        """What it has had lately."""
        return self.meter.rates(self._timeline.now_s)

    def _present(self, visit: Visit) -> int:
        if not self._world.variant.reuse:
            return 0
        held = self.keeper.held(visit.user)
        return visit.tokens if held >= visit.tokens else self.shelf.find(visit.user, visit.tokens).device

    def _admit(self, visit: Visit, now: float) -> Reason:
        nbytes = self._world.prefix_bytes(visit.prefix)
        self._b_p99 = max(self._b_p99, nbytes)
        load = self.meter.rates(now)
        t_life_s = self.holds.t_life_s
        self.gate.rates(load.pre_ms, load.rank_rate_per_s, load.rank_ms, t_life_s, self._b_p99, now)
        return self.gate.admit(visit.user, nbytes, now)

    def _expire(self, now: float) -> None:
        for gone in self.keeper.expire(now):
            self.wasted += 1
            flight = self.flights.of(gone.key)
            if flight is not None and not flight.running:
                self.flights.end(flight)

    # Ranking

    def _rank_run(self) -> Run | None:
        scheduler, now = self._world.scheduler, self._timeline.now_s
        share_ms = self.ranks.share_ms(now, self._fit.cost_ms) if self._world.variant.ladder else float("inf")
        visits = self.ranks.batch(
            scheduler.rank_batch_max, scheduler.rank_batch_tokens, now, self._fit.cost_ms
        )
        batch = Batch(self._ranked)
        for place, visit in enumerate(visits):
            if now >= visit.answer_by_s:
                self._lose(visit)
                continue
            left_ms = (visit.deadline_s - now) * 1000
            self._start(batch, visit, min(left_ms, share_ms) if place == 0 else left_ms)
        if not batch.visits:
            return self._rank_run() if visits else None
        batch.ms = self._world.costs.coefficients.batch_ms(batch.shapes)
        batch.ms *= self._noise.ratio(batch.ms)
        return Run(RANK, (batch.ms / 1000,), batch)

    def _start(self, batch: Batch, visit: Visit, left_ms: float) -> None:
        now, user = self._timeline.now_s, visit.user
        visit.started_s = now
        self._take_over(visit)
        self.keeper.pin(visit, now)
        lease, cached = self.shelf.open(user, visit.tokens, now) if self._world.variant.reuse else (None, 0)
        visit.missing = visit.tokens - cached
        visit.served = self._fit.tokens(visit, left_ms)
        if visit.served < visit.tokens:
            # A part of the history is another prefix: it must not take the place of the whole one.
            self.shelf.close(user, visit.tokens, lease, now, keep=False)
            visit.path = "truncated" if visit.served else "degraded"
            lease, cached = None, 0
        else:
            whole = cached >= visit.prefix
            visit.path = "full" if not cached and visit.tokens else "hit" if whole else "resumed"
        visit.cached, visit.missing = cached, visit.served - cached
        shape = Pass(new_tokens=visit.missing, cached_tokens=cached, candidates=visit.request.candidates)
        batch.add(visit, lease, shape)

    def _take_over(self, visit: Visit) -> None:
        """What a flight has not done yet, ranking does itself."""
        flight = self.flights.of(visit.user)
        if flight is not None and not flight.running and flight.target <= visit.tokens:
            self._landed(flight)

    def _ranked(self, batch: Batch) -> None:
        now = self._timeline.now_s
        self._latency.observe(batch.shapes, batch.ms)
        self.meter.rank_took(now, batch.ms, len(batch.visits))
        for visit, lease in zip(batch.visits, batch.leases, strict=True):
            if visit.served == visit.tokens and self._world.variant.reuse:
                self.shelf.close(visit.user, visit.tokens, lease, now)
            self.keeper.unpin(visit, now) if visit.pinned else self.keeper.withdraw(visit, now)
            visit.done_s = now
            self._done(visit)

    def _lose(self, visit: Visit) -> None:
        visit.started_s = visit.done_s = self._timeline.now_s
        visit.path = "lost"
        self.keeper.withdraw(visit, visit.done_s)
        self._done(visit)

    # Pre-inference

    def _flight_run(self) -> Run | None:
        now = self._timeline.now_s
        while (flight := self.flights.take()) is not None:
            if flight.done:  # what was there may have left
                flight.done = self.shelf.find(flight.user, flight.target).device
            flight.plan = self._plans.plan(flight.done, flight.target)
            if not flight.plan.tokens:
                self._ready(flight)
                continue
            if not flight.began_s:
                flight.began_s = now
                self.holds.produce(flight.user)
            flight.running = True
            ends_s = flight.plan.ends_s
            ratio = self._chunk_ratio(ends_s)
            if ratio != 1.0:
                ends_s = tuple(end_s * ratio for end_s in ends_s)
            return Run(CHUNK, ends_s, _Flying(self, flight, ends_s), flight.deadline_s)
        return None

    def _chunk_ratio(self, ends_s: tuple[float, ...]) -> float:
        draws, mean_ms = min(len(ends_s), _NOISE_DRAWS), 1000 * ends_s[-1] / len(ends_s)
        return sum(self._noise.ratio(mean_ms, chunk=True) for _ in range(draws)) / draws

    def _plan_s(self, flight: Flight) -> float:
        done = flight.done
        plan = self._plans.plan(done, flight.target)
        return plan.ends_s[-1] if plan.ends_s else 0.0

    def flown(self, flight: Flight, steps: int, seconds: float) -> None:
        """A run of the flight has ended, or was cut."""
        now, plan = self._timeline.now_s, flight.plan
        flight.running = False
        done = plan.tokens[steps - 1]
        flight.spent_s += seconds
        flight.chunks += steps
        self.computed += done - flight.done
        flight.done = done
        if not self.shelf.put(flight.user, done, now):
            self.keeper.cancel(flight.user)
            self._landed(flight)
        elif done >= flight.target:
            self._ready(flight)
        else:
            self.keeper.keep(flight.user, done, now)
            self.flights.put(flight)

    def _ready(self, flight: Flight) -> None:
        now = self._timeline.now_s
        self.keeper.ready(flight.user, flight.target, now)
        for visit in flight.visits:
            visit.ready_s = now
        self._landed(flight)

    def _landed(self, flight: Flight) -> None:
        self.flights.end(flight)
        if flight.spent_s:
            self.meter.pre_took(self._timeline.now_s, 1000 * flight.spent_s)


class _Flying:
    """The run of a flight."""

    __slots__ = ("_ends_s", "_flight", "_instance")

    def __init__(self, instance: Instance, flight: Flight, ends_s: tuple[float, ...]) -> None:
        self._instance, self._flight, self._ends_s = instance, flight, ends_s

    def stopped(self, steps: int) -> None:
        self._instance.flown(self._flight, steps, self._ends_s[steps - 1])
