"""Pre-inference on one instance: flights, their chunks, and the copies from host memory before them."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.relay.expander import Step
from relaygr.relay.loads import Kind
from relaygr.sim.flights import Flight, FlightQueue
from relaygr.sim.found import Found
from relaygr.sim.machine import CHUNK, RELOAD, Run
from relaygr.sim.reloads import Reloads
from relaygr.sim.site import Site
from relaygr.sim.visit import Visit


class Preparing:
    """Brings prefixes of admitted signals to the device; what ranking needs sooner it leaves to ranking."""

    def __init__(self, site: Site, wake: Callable[[], None], rank: Callable[[Visit], None]) -> None:
        """`wake` is called when a copy has ended, `rank` with rankings that waited for it."""
        self._site, self._wake, self._rank = site, wake, rank
        self.flights = FlightQueue()
        self._reloads = Reloads(site)

    def begin(self, visit: Visit) -> Flight | None:
        """An admitted signal: what is to be done for it is noted in the visit; None if nothing is."""
        site, user, target = self._site, visit.user, visit.prefix
        found, now = visit.found or site.shelf.find(user, target), site.now_s
        step = self._step(visit, found, now + site.world.budgets.lead_default_ms / 1000)
        visit.outcome = step
        if step is Step.HOLD:
            visit.ready_s = now
            site.keeper.ready(user, target, now)
            return None
        flight = self.flights.of(user)
        if flight is None:
            deadline_s = now + site.world.budgets.lead_default_ms / 1000
            flight = Flight(user, target, deadline_s, now, found.device, step is Step.RELOAD)
            self.flights.put(flight)
        flight.target = max(flight.target, target)
        flight.visits.append(visit)
        return flight

    def _step(self, visit: Visit, found: Found, deadline_s: float) -> Step:
        site, user = self._site, visit.user
        ends_s = site.plans.plan(found.device, visit.prefix).ends_s
        return site.expander.prepare(
            user,
            site.shelf.ref(user, visit.prefix),
            site.stored(found.device),
            site.stored(found.host),
            visit,
            site.now_s,
            deadline_s,
            ends_s[-1] if ends_s else 0.0,
            appendable=True,
        ).step

    def wait_ms(self) -> float:
        """Until a new pre-inference would begin, if nothing else came."""
        plans = self._site.plans
        ends = (plans.plan(flight.done, flight.target).ends_s for flight in self.flights)
        return 1000 * sum(end_s[-1] for end_s in ends if end_s)

    def waits(self, visit: Visit) -> bool:
        """Whether a ranking is better off waiting for the copy that runs; it is put back when that ends."""
        site, flight = self._site, self.flights.of(visit.user)
        if flight is None or not flight.reloading or not flight.running:
            return False
        hit_ms = site.latency.hit_p99_ms(visit.tokens, 0, visit.request.candidates)
        if flight.ends_at_s - site.now_s > site.world.budgets.rank_wait_ms(hit_ms) / 1000:
            return False
        flight.waiting.append(visit)
        return True

    def yield_to(self, visit: Visit) -> float:
        """A ranking begins: it does itself what is not done yet; milliseconds of its copies from the host."""
        site, user = self._site, visit.user
        flight = self.flights.of(user)
        if flight is not None:
            flight.ranked = True
        if flight is not None and flight.load is not None and not flight.running:
            left_s = flight.load_left_s
            self._reloads.done(flight)
            return 1000 * left_s
        if site.world.variant.host and site.keeper.held(user) < visit.tokens:
            return self._reloads.at_once(visit)
        return 0.0

    def next_copy(self) -> Run | None:
        """The next part of a copy from host memory."""
        site = self._site
        while (flight := self.flights.take(reloading=True)) is not None:
            if flight.load is None and not self._reloads.begin(flight):
                self._reloads.give_up(flight)
                self.flights.put(flight)
                continue
            flight.running = True
            flight.ends_s = site.parts_s(flight.load_left_s)
            flight.ends_at_s = site.now_s + flight.ends_s[-1]
            return Run(RELOAD, flight.ends_s, _Copying(self, flight), flight.deadline_s)
        return None

    def next_chunks(self) -> Run | None:
        """The rest of the most urgent flight, in chunks."""
        site = self._site
        while (flight := self.flights.take(reloading=False)) is not None:
            if site.expander.pointless(flight.user, site.now_s):
                site.keeper.cancel(flight.user)
                self.end(flight)
                continue
            if flight.queued_s < site.now_s and (flight.done or flight.ranked):
                # What was there may have left, or grown.
                flight.done = site.shelf.find(flight.user, flight.target).device
            flight.plan = site.plans.plan(flight.done, flight.target)
            if not flight.plan.tokens:
                self._ready(flight)
                continue
            if not flight.began:
                flight.began = True
                site.keeper.holds.produce(flight.user)
            flight.running = True
            flight.ends_s = site.scattered(flight.plan.ends_s)
            return Run(CHUNK, flight.ends_s, _Computing(self, flight), flight.deadline_s)
        return None

    def computed(self, flight: Flight, steps: int) -> None:
        """So many chunks of its run are done, and it has no slot any more."""
        site = self._site
        flight.running = False
        done = flight.plan.tokens[steps - 1]
        flight.spent_s += flight.ends_s[steps - 1]
        site.counts.chunks += steps
        site.counts.computed += done - flight.done
        flight.done = done
        if not flight.wanted:
            return
        if not site.shelf.put(flight.user, done, site.now_s):
            site.keeper.cancel(flight.user)
            self.end(flight)
        elif done >= flight.target:
            self._ready(flight)
        else:
            site.keeper.keep(flight.user, done, site.now_s)
            self.flights.put(flight)

    def copied(self, flight: Flight, steps: int) -> None:
        """So many parts of its copy are done, and it has no slot any more."""
        flight.running = False
        flight.load_left_s -= flight.ends_s[steps - 1]
        if steps == len(flight.ends_s):
            self._reloads.done(flight)
        if flight.wanted:
            self.flights.put(flight)
        elif flight.load is not None:  # it was dropped while it ran
            self._reloads.give_up(flight)
        if not flight.reloading or not flight.wanted:
            waiting, flight.waiting = flight.waiting, []
            for visit in waiting:
                self._rank(visit)
            self._wake()

    def end(self, flight: Flight) -> None:
        """It is done, or what is left is not wanted."""
        self.flights.end(flight)
        self._site.expander.landed(flight.user)
        if flight.load is not None and not flight.running:
            self._reloads.give_up(flight)
        if flight.spent_s:
            self._site.meter.serve(Kind.PRE, 1000 * flight.spent_s, self._site.now_s)

    def abandon(self, flight: Flight) -> None:
        """What it has brought is of no use any more."""
        self._site.keeper.forget(flight.user)
        if flight.running:
            self.flights.end(flight)
        else:
            self.end(flight)

    def drop(self, user: int) -> None:
        """The hold that the flight was for is over."""
        flight = self.flights.of(user)
        if flight is not None and not flight.running:
            self.end(flight)

    def _ready(self, flight: Flight) -> None:
        site = self._site
        site.keeper.ready(flight.user, flight.target, site.now_s)
        for visit in flight.visits:
            visit.ready_s = site.now_s
        self.end(flight)


class _Computing:
    """The run of a flight's chunks."""

    __slots__ = ("_flight", "_preparing")

    def __init__(self, preparing: Preparing, flight: Flight) -> None:
        self._preparing, self._flight = preparing, flight

    def stopped(self, steps: int) -> None:
        self._preparing.computed(self._flight, steps)


class _Copying:
    """The run of a flight's copy."""

    __slots__ = ("_flight", "_preparing")

    def __init__(self, preparing: Preparing, flight: Flight) -> None:
        self._preparing, self._flight = preparing, flight

    def stopped(self, steps: int) -> None:
        self._preparing.copied(self._flight, steps)
