"""Copies of prefixes from host memory to the device, for flights and for rankings."""

from __future__ import annotations

from collections.abc import Hashable

from relaygr.cache.interface import LoadPlan
from relaygr.sim.flights import Flight
from relaygr.sim.site import Site
from relaygr.sim.visit import Visit


class Reloads:
    """Begins and ends copies; how long they take is up to who runs them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._begun: set[Hashable] = set()  # users whose copies the link has let begin

    def begin(self, flight: Flight) -> bool:
        """The flight has its plan, and a copy to do; False if the link or the books say no."""
        site, user = self._site, flight.user
        if not self._allowed(user):
            return False
        found = site.shelf.find(user, flight.target)
        flight.done = found.device
        if found.host <= found.device:
            return False
        flight.load = site.shelf.load(user, found.host, site.now_s, self._deadline_s())
        if flight.load is None:
            return False
        site.keeper.holds.reload(user)
        flight.load_left_s = self._copy_s(flight.load)
        return True

    def done(self, flight: Flight) -> None:
        """The copy has ended; what it brought stays for the rankings that the flight is for."""
        site, plan = self._site, flight.load
        assert plan is not None, "a copy that ends was begun"
        flight.load, flight.load_left_s = None, 0.0
        self._leave(flight, self._copy_s(plan))
        if self._brought(plan):
            flight.done = plan.start + plan.tokens
            site.keeper.keep(flight.user, flight.done, site.now_s)
            for visit in flight.visits:
                visit.reloaded = True

    def give_up(self, flight: Flight) -> None:
        """The copy comes to nothing: the prefix is to be computed."""
        if flight.load is not None:
            self._site.shelf.loaded(flight.load, ok=False)
            flight.load = None
        self._leave(flight)

    def at_once(self, visit: Visit) -> float:
        """Ranking finds more in host memory than on the device, and brings it; milliseconds."""
        site = self._site
        found = site.shelf.find(visit.user, visit.tokens)
        if found.host <= found.device:
            return 0.0
        plan = site.shelf.load(visit.user, found.host, site.now_s, self._deadline_s())
        if plan is None or not self._brought(plan):
            return 0.0
        visit.reloaded = True
        return 1000 * self._copy_s(plan)

    def _allowed(self, user: int) -> bool:
        link = self._site.link
        if user not in self._begun:
            begun, _ = link.next(self._site.now_s)
            if begun is not None:
                self._begun.add(begun.key)
        if user in self._begun:
            return True
        link.cancel(user)
        return False

    def _leave(self, flight: Flight, copied_s: float = 0.0) -> None:
        flight.reloading = False
        self._begun.discard(flight.user)
        self._site.link.done(flight.user, self._site.now_s, copied_s)

    def _brought(self, plan: LoadPlan) -> bool:
        site = self._site
        if not site.shelf.loaded(plan, ok=True):
            return False
        site.counts.reloads += 1
        site.counts.copied_in_bytes += plan.tokens * site.world.costs.token_bytes
        return True

    def _copy_s(self, plan: LoadPlan) -> float:
        costs = self._site.world.costs
        return costs.link_s(plan.tokens * costs.token_bytes)

    def _deadline_s(self) -> float:
        return self._site.now_s + self._site.world.budgets.b_pipe_ms / 1000
