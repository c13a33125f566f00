"""Ranking on one instance: who waits, and the batches that run."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.relay.latency import Pass
from relaygr.relay.loads import Kind
from relaygr.sim.batch import Batch, Fit
from relaygr.sim.machine import RANK, Run
from relaygr.sim.pre import Preparing
from relaygr.sim.ranks import RankQueue
from relaygr.sim.site import Site
from relaygr.sim.visit import Visit


class Scoring:
    """Takes rankings and answers each with `done`, in its time or as lost."""

    def __init__(
        self, site: Site, preparing: Preparing, done: Callable[[Visit], None], wake: Callable[[], None]
    ) -> None:
        """`wake` is called when a batch has ended."""
        self._site, self._preparing, self._done, self._wake = site, preparing, done, wake
        self._fit = Fit(site.world, site.latency)
        self._queue = RankQueue()

    def __len__(self) -> int:
        """Rankings that wait."""
        return len(self._queue)

    def put(self, visit: Visit) -> None:
        site = self._site
        visit.queued_s = site.now_s
        site.expander.leave(visit.user, visit)
        visit.missing = visit.tokens - self._present(visit)
        self._queue.put(visit)
        site.meter.arrive(Kind.RANK, site.now_s)

    def clear(self) -> list[Visit]:
        """Everybody who waits, now no longer."""
        return self._queue.clear()

    def next_run(self) -> Run | None:
        """The next batch, if somebody waits."""
        if not len(self._queue):
            return None
        site, now = self._site, self._site.now_s
        scheduler, ladder = site.world.scheduler, site.world.variant.ladder
        while len(self._queue):
            self._queue.look_again(self._present)
            share_ms = self._queue.share_ms(now, self._fit.cost_ms) if ladder else float("inf")
            batch = Batch(self._ended)
            visits = self._queue.batch(
                scheduler.rank_batch_max, scheduler.rank_batch_tokens, now, self._fit.cost_ms
            )
            for place, visit in enumerate(visits):
                if now >= visit.answer_by_s:
                    self._lose(visit)
                else:
                    left_ms = (visit.rank_by_s - now) * 1000
                    self._begin(batch, visit, min(left_ms, share_ms) if place == 0 else left_ms)
            if batch.visits:
                batch.ms += site.world.costs.coefficients.batch_ms(batch.shapes)
                batch.ms *= site.noise.ratio(batch.ms)
                return Run(RANK, (batch.ms / 1000,), batch)
        return None

    def _present(self, visit: Visit) -> int:
        site = self._site
        if not site.world.variant.reuse:
            return 0
        held = site.keeper.held(visit.user)
        if held >= visit.tokens:
            return visit.tokens
        found = site.shelf.find(visit.user, visit.tokens)
        return max(found.device, found.host)

    def _begin(self, batch: Batch, visit: Visit, left_ms: float) -> None:
        site, now, user = self._site, self._site.now_s, visit.user
        visit.started_s = now
        lease, cached = None, 0
        if site.world.variant.reuse:
            batch.ms += self._preparing.yield_to(visit)
            site.keeper.pin(visit, now)
            if visit.pinned and site.keeper.held(user) >= visit.tokens:
                cached = visit.tokens  # and stays there as long as the hold, which is pinned
            else:
                lease, cached = site.shelf.open(user, visit.tokens, now)
        visit.missing = visit.tokens - cached
        visit.served = self._fit.tokens(visit, left_ms)
        if visit.served < visit.tokens:
            # A part of the history is another prefix: it must not take the place of the whole one.
            site.shelf.close(user, visit.tokens, lease, now, keep=False)
            visit.path = "truncated" if visit.served else "degraded"
            lease, cached = None, 0
        elif not cached and visit.tokens:
            visit.path = "full"
        elif cached < visit.prefix:
            visit.path = "resumed"
        else:
            visit.path = "reloaded" if visit.reloaded else "hit"
        visit.cached, visit.missing = cached, visit.served - cached
        shape = Pass(new_tokens=visit.missing, cached_tokens=cached, candidates=visit.request.candidates)
        batch.add(visit, lease, shape)

    def _ended(self, batch: Batch) -> None:
        site, now = self._site, self._site.now_s
        if site.world.costs.scatter:  # else every pass takes what the model says
            site.latency.observe(batch.shapes, batch.ms)
        site.counts.ranked += len(batch.visits)
        site.meter.serve(Kind.RANK, batch.ms, now, len(batch.visits))
        for visit, lease in zip(batch.visits, batch.leases, strict=True):
            if lease is not None:
                site.shelf.close(visit.user, visit.tokens, lease, now)
            elif visit.cached:
                site.shelf.touch(visit.user, visit.tokens)
            self._leave(visit, now)
        self._wake()

    def _lose(self, visit: Visit) -> None:
        visit.started_s = self._site.now_s
        visit.path = "lost"
        self._leave(visit, visit.started_s)

    def _leave(self, visit: Visit, now: float) -> None:
        self._site.keeper.unpin(visit, now)
        visit.done_s = now
        self._done(visit)
