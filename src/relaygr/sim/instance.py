"""One instance: takes the two laps of its users, and gives its slots the most urgent work there is."""

from __future__ import annotations

import math
from collections.abc import Callable

from relaygr.core.ids import Fingerprint
from relaygr.relay.expander import Step
from relaygr.relay.gate import Gate
from relaygr.relay.loads import Kind
from relaygr.relay.quantile import QuantileWindow
from relaygr.relay.trigger import Owner, Reason
from relaygr.sim.batch import Batch
from relaygr.sim.machine import CHUNK, RANK, RELOAD, SPILL, Machine, Run
from relaygr.sim.pre import Preparing
from relaygr.sim.scoring import Scoring
from relaygr.sim.site import Site
from relaygr.sim.spills import Spills
from relaygr.sim.visit import Visit

_SIZES = 1000
_RATES_EVERY_S = 0.05


class Instance:
    """What one process does, minus the arithmetic.

    Attributes:
        alive: the process runs.
        accepts: it takes signals; rankings it takes as long as it is alive.
    """

    def __init__(self, site: Site, done: Callable[[Visit], None]) -> None:
        world = site.world
        self.site = site
        self.preparing, self.spills = Preparing(site, self._wake, self._queue), Spills(site)
        self.scoring = Scoring(site, self.preparing, done, self._wake)
        self.keeper, self.holds = site.keeper, site.keeper.holds
        self.gate = Gate(world.trigger, self.holds, world.slots)
        self.machine = Machine(site.timeline, world.slots, self)
        self.copying = Machine(site.timeline, 1, _Copies(self)) if not world.shared_copies else self.machine
        self.alive = self.accepts = True
        self._sizes = QuantileWindow(0.99, 0.0, _SIZES)
        self._rates_s = -math.inf

    def signal(self, visit: Visit, work_ms: float | None) -> None:
        """The lap of pre-inference, `work_ms` of it to do: what becomes of it is noted in the visit."""
        self.expire()
        reason = self._admit(visit, work_ms) if self.accepts else Reason.NO_INSTANCE
        visit.reason = reason
        if reason is not Reason.ADMITTED:
            return
        visit.claimed = True
        self.site.counts.admitted += 1
        flight = self.preparing.begin(visit)
        if visit.outcome in (Step.HOLD, Step.JOIN):
            self.gate.refund()
        elif flight is not None and flight.reloading:
            self.copying.poke(RELOAD, flight.deadline_s)
        elif flight is not None:
            self.machine.poke(CHUNK, flight.deadline_s)

    def rank(self, visit: Visit) -> bool:
        """The lap of ranking; False if it is not taken."""
        site = self.site
        if not self.alive or len(self.scoring) >= site.world.scheduler.rank_queue_max:
            return False
        self.expire()
        site.returns.visit(visit.user, site.now_s)
        if not self.preparing.waits(visit):
            self._queue(visit)
        return True

    def next_run(self) -> Run | None:
        """What a free slot does next."""
        run = self.scoring.next_run()
        shared = self.copying is self.machine
        if run is None and len(self.preparing.flights):
            run = self.preparing.next_copy() if shared else None
            run = run or self.preparing.next_chunks()
        if run is None and shared:
            run = self.spills.next_run()
        return run

    def cached(self, visit: Visit) -> int:
        """Tokens of a prefix that need not be computed."""
        visit.found = found = self.site.shelf.find(visit.user, visit.prefix)
        return max(found.device, found.host)

    def owner(self, user: int) -> Owner:
        """How it stands, for the trigger."""
        site, meter = self.site, self.site.meter
        rate = meter.rate_per_s(Kind.RANK, site.now_s) / site.world.slots
        return Owner(
            active=self.accepts,
            pre_wait_ms=self.preparing.wait_ms(),
            rank_share=min(rate * meter.mean_ms(Kind.RANK) / 1000, 1.0),
            rank_rate_per_s=rate,
            key_inflight=self.holds.claims(user),
        )

    def expire(self) -> None:
        """Let go of what nobody came for."""
        site = self.site
        for gone in site.keeper.expire(site.now_s):
            site.counts.wasted += 1
            self.preparing.drop(gone.key)

    def kill(self) -> list[Visit]:
        """The process is gone without a word, and all that it had; the rankings that it owed an answer."""
        self.alive = self.accepts = False
        owed = self.scoring.clear()
        for run in self.machine.stop():
            if isinstance(run.work, Batch):
                owed += run.work.visits
        self.copying.stop()
        for flight in self.preparing.flights:
            owed += flight.waiting
        return owed

    def swap(self, build: Fingerprint) -> None:
        """Serve another build from the next batch on; nothing of the one before is found any more."""
        for flight in list(self.preparing.flights):
            self.preparing.abandon(flight)
        self.site.keeper.forget_all()
        self.site.shelf.swap(build)

    def _queue(self, visit: Visit) -> None:
        self.scoring.put(visit)
        self.machine.poke(RANK)

    def _wake(self) -> None:
        """Streams that only copy do not see what the slots have left to do, nor the other way around."""
        if self.copying is not self.machine:
            self.machine.poke(CHUNK)
            if self.spills.wanted():
                self.copying.poke(SPILL)

    def _admit(self, visit: Visit, work_ms: float | None) -> Reason:
        now, nbytes = self.site.now_s, self.site.world.prefix_bytes(visit.prefix)
        self._sizes.add(nbytes)
        if now - self._rates_s >= _RATES_EVERY_S:
            self._rates_s, meter = now, self.site.meter
            self.gate.rates(
                meter.mean_ms(Kind.PRE),
                meter.rate_per_s(Kind.RANK, now),
                meter.mean_ms(Kind.RANK),
                self.holds.t_life_s,
                self._sizes.value,
                now,
            )
        return self.gate.admit(visit.user, nbytes, now, work_ms)


class _Copies:
    """The work of streams that only copy."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def next_run(self) -> Run | None:
        return self._instance.preparing.next_copy() or self._instance.spills.next_run()
