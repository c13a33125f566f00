"""One pass over a wave of requests: where the K/V of each are, and what is done when they do not come."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from relaygr.core.clock import Clock
from relaygr.core.errors import BackendError
from relaygr.core.state import Ref
from relaygr.engine.batch import Work, score
from relaygr.engine.checker import Checker
from relaygr.engine.choosing import Loader
from relaygr.engine.courier import Arrival, LoadLostError
from relaygr.engine.residency import Residency
from relaygr.engine.tiers import Tiers
from relaygr.kernels.interface import Kernel
from relaygr.models.ranker import Ranker


class Passes:
    """Scores waves of requests over the states of one engine; runs where the engine runs.

    Attributes:
        reuses: whether what is computed is kept between requests.
    """

    def __init__(
        self,
        model: Ranker,
        kernel: Kernel,
        checker: Checker,
        tiers: Tiers,
        loader: Loader,
        clock: Clock,
        microbatch: int,
    ) -> None:
        self._model, self._kernel, self._checker, self._loader = model, kernel, checker, loader
        self._tiers, self._desk, self._clock, self._microbatch = tiers, tiers.desk, clock, microbatch
        self.reuses = True

    def kept_ref(self, work: Work) -> Ref | None:
        """What identifies a prefix that is kept between requests; None for one that is not."""
        kept = self._model.config.cacheable == "append" and work.tokens and work.keep and self.reuses
        return self._checker.ref(work) if kept else None

    def score(self, wave: MutableSequence[Work], held: list[Residency]) -> list[Tensor]:
        """Logits [m, tasks] of each request.

        A prefix that is loaded may still be on its way when its pass begins: layer i of the model waits for
        its layer i. One that does not come is done without, in a further pass over the same wave.

        Args:
            wave: a request may be replaced by what is scored instead.
            held: is filled with the residencies, which the caller has to close whatever happens.
        """
        now = self._clock.now_s()
        self._tiers.sweep(now)
        held.extend(self._hold(wave, place, now) for place in range(len(wave)))
        while True:
            began_s = self._clock.now_s()
            try:
                logits = score(self._model, self._kernel, wave, held, self._microbatch)
            except LoadLostError:
                self._make_up(wave, held)
                continue
            self._loader.computed(wave, held, self._clock.now_s() - began_s)
            return logits

    def _hold(self, wave: MutableSequence[Work], place: int, now_s: float) -> Residency:
        """The residency of a request whose prefix may be loaded."""
        work = wave[place]
        ref = self.kept_ref(work)
        if ref is None or not len(work.candidates):
            return self._open(work, now_s)
        by_s = float("inf") if work.request is None else work.request.load_by_s
        began_s, choose = self._clock.now_s(), partial(self._loader.choose, ref, len(work.candidates))
        brought = self._tiers.arrive(ref, now_s, by_s, choose)
        if isinstance(brought, Arrival):
            return self._desk.arriving(ref, brought)
        if isinstance(brought, int):
            self._loader.loaded(brought, self._clock.now_s() - began_s)
            residency = self._open(work, now_s)
            residency.loaded = min(brought, residency.cached)
            return residency
        return self._without(wave, place, brought)

    def _make_up(self, wave: MutableSequence[Work], held: list[Residency]) -> None:
        """Let go of the loads that were lost, and go on without them."""
        for place, residency in enumerate(held):
            arrival = residency.arrival
            if arrival is not None and arrival.lost:
                self._desk.close(residency)
                held[place] = self._without(wave, place, self._tiers.lost(arrival))

    def _without(self, wave: MutableSequence[Work], place: int, error: BackendError | None) -> Residency:
        """A request whose prefix host memory cannot give is computed, or answered with an error."""
        work = wave[place]
        if error is not None:
            wave[place] = replace(work, candidates=work.candidates[:0])
            nothing = self._desk.nothing(str(error))
            nothing.error = error
            return nothing
        asked = work.request
        if asked is not None and asked.otherwise is not None:
            wave[place] = work = self._checker.work(work.place, asked.otherwise())
        return self._open(work, self._clock.now_s())

    def _open(self, work: Work, now_s: float) -> Residency:
        """What the device has of a request, and room for the rest."""
        cacheable = self._model.config.cacheable
        if cacheable == "none":
            return self._desk.nothing("model is cacheable per pass")
        if cacheable == "request":
            return self._unkept(work, "model is cacheable per request")
        if not work.keep:
            return self._unkept(work, "asked not to be kept")
        if not self.reuses:
            return self._unkept(work, "what was kept gave other scores")
        return self._desk.open(self._checker.ref(work), now_s, needed=bool(len(work.candidates)))

    def _unkept(self, work: Work, reason: str) -> Residency:
        needed = bool(len(work.candidates))
        return self._desk.private(work.tokens, reason) if needed else self._desk.nothing(reason)
