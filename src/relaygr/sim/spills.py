"""Copies of what is used least to host memory, when nothing else is to be done."""

from __future__ import annotations

from relaygr.cache.interface import StorePlan
from relaygr.core.state import Ref
from relaygr.relay.expander import Spill
from relaygr.sim.machine import SPILL, Run
from relaygr.sim.site import Site


class Spills:
    """One at a time, in parts, while fewer device pages are free than the settings want."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._plan: StorePlan | None = None
        self._left_s = 0.0
        self._ends_s: tuple[float, ...] = ()
        self._running = False
        self._on = site.world.variant.host and site.world.host.host_bytes > 0

    def wanted(self) -> bool:
        """Whether there is something to copy, as far as is known without looking for it."""
        host = self._site.world.host
        idle = self._on and not self._running
        return idle and (self._plan is not None or self._site.shelf.short_pages(host.clean_target) > 0)

    def next_run(self) -> Run | None:
        """The rest of the spill under way, or the next."""
        if not self._on or self._running:
            return None
        if self._plan is None and not self._begin():
            return None
        self._ends_s = self._site.parts_s(self._left_s)
        self._running = True
        return Run(SPILL, self._ends_s, self)

    def stopped(self, steps: int) -> None:
        """Parts of the spill are done."""
        site, plan = self._site, self._plan
        self._running = False
        self._left_s -= self._ends_s[steps - 1]
        if steps == len(self._ends_s) and plan is not None:
            self._plan = None
            if site.shelf.spilled(plan):
                site.counts.spills += 1
                site.counts.copied_out_bytes += plan.tokens * site.world.costs.token_bytes

    def _begin(self) -> bool:
        site, host = self._site, self._site.world.host
        pages = site.shelf.short_pages(host.clean_target)
        if pages:
            self._plan = site.shelf.spill(pages, self._worth, site.now_s)
        if self._plan is None:
            return False
        self._left_s = site.world.costs.link_s(self._plan.tokens * site.world.costs.token_bytes)
        return True

    def _worth(self, user: int, ref: Ref) -> bool:
        site = self._site
        consumed = site.keeper.holds.state(user) is None
        return site.expander.spill(user, ref, None, consumed, 0, site.now_s) is Spill.YES
