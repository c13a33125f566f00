"""One request through a cascade, with and without a relay: prefetch while retrieval runs, then rank.

Real: the prefetch thread, retrieval, and ranking, on this machine's cores. Modelled: `lead_ms`, which stands
for upstream work on other machines (feature fetching, pre-processing) as a plain wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from relaygr.bench.retrieval import Retriever
from relaygr.core.errors import BackendError, RelayError
from relaygr.core.ids import DEFAULT_TENANT
from relaygr.data.dataset import Int64s
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import PrefetchResult, RankRequest


class Mode(StrEnum):
    """How the user's history reaches the ranker."""

    INLINE = "inline"  # nothing is cached; the rank call does everything
    RELAY = "relay"  # nothing is cached; the prefix is prefetched during the lead time
    RETURNING = "relay, returning"  # as relay, with the prefix of the user's previous visit still cached


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """One request to replay.

    Attributes:
        history: the user's events before the request.
        previous: how many of them there were at the end of the user's previous visit.
        time_s: of the request.
        injected: int64, candidates added to those that retrieval finds.
    """

    history: UserHistory
    previous: int
    time_s: int
    injected: Int64s

    def previous_history(self) -> UserHistory:
        """The events that were known at the previous visit."""
        whole, run = self.history, slice(0, self.previous)
        return UserHistory(
            whole.user,
            whole.items[run],
            whole.timestamps[run],
            whole.actions[run],
            contextual=whole.contextual,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Lap:
    """What one request took in one mode.

    Attributes:
        ready: the prefetch was done when ranking was called; false without one.
        rank_ms: from the rank call to its answer, waiting for an unfinished prefetch included.
        rank_cpu_ms: processor time of the whole process meanwhile; far below `rank_ms` on one thread, the
            process waited or was not run.
        prefetch_ms: from the trigger to the end of the prefetch, 0 without one.
        retrieval_ms: retrieval and filter.
        total_ms: from the arrival of the request to the scores, the modelled lead included.
        prefetch_computed, rank_computed, rank_cached: history tokens.
    """

    candidates: Int64s
    logits: npt.NDArray[np.float32]
    ready: bool
    rank_ms: float
    rank_cpu_ms: float
    prefetch_ms: float
    retrieval_ms: float
    total_ms: float
    prefetch_computed: int
    rank_computed: int
    rank_cached: int


class Cascade:
    """Retrieval and ranking of one request after another on one engine."""

    def __init__(self, engine: Engine, retriever: Retriever, lead_ms: float) -> None:
        self._engine, self._retriever, self._lead_s = engine, retriever, lead_ms / 1000

    def run(self, visit: Visit, mode: Mode) -> Lap:
        """Serve a visit; the caches hold what `mode` says before it and nothing of the user after it.

        Raises:
            RelayError: what the engine says about the request.
        """
        user = visit.history.user
        self._engine.forget(DEFAULT_TENANT, user)
        if mode is Mode.RETURNING:
            self._engine.prefetch(visit.previous_history())
        lap = self._serve(visit, relay=mode is not Mode.INLINE)
        self._engine.forget(DEFAULT_TENANT, user)
        return lap

    def _serve(self, visit: Visit, relay: bool) -> Lap:
        arrival = time.perf_counter()
        first = _Prefetch(self._engine, visit.history) if relay else None
        found = self._retriever.retrieve(visit.history.items)
        retrieved = time.perf_counter()
        time.sleep(self._lead_s)
        candidates = shuffled(np.union1d(found, visit.injected), visit.time_s)
        request = RankRequest(visit.history, candidates, visit.time_s)
        ready = first is not None and first.ready
        called, cpu = time.perf_counter(), time.process_time()
        result = self._engine.rank(request)
        answered, cpu = time.perf_counter(), time.process_time() - cpu
        ahead = first.join() if first is not None else None
        return Lap(
            candidates=candidates,
            logits=result.logits,
            ready=ready,
            rank_ms=(answered - called) * 1e3,
            rank_cpu_ms=cpu * 1e3,
            prefetch_ms=(first.ended - arrival) * 1e3 if first is not None else 0.0,
            retrieval_ms=(retrieved - arrival) * 1e3,
            total_ms=(answered - arrival) * 1e3,
            prefetch_computed=ahead.tokens_computed if ahead is not None else 0,
            rank_computed=result.served.tokens_computed,
            rank_cached=result.served.tokens_cached,
        )


class _Prefetch:
    """A prefetch in a thread of its own."""

    def __init__(self, engine: Engine, history: UserHistory) -> None:
        self.ended = 0.0
        self._outcome: PrefetchResult | RelayError | None = None
        self._thread = threading.Thread(target=self._run, args=(engine, history), name="prefetch")
        self._thread.start()

    @property
    def ready(self) -> bool:
        return self._outcome is not None

    def join(self) -> PrefetchResult:
        """Wait for the end; raises what the engine raised."""
        self._thread.join()
        if self._outcome is None:
            raise BackendError("the prefetch thread died; its traceback is on standard error")
        if isinstance(self._outcome, RelayError):
            raise self._outcome
        return self._outcome

    def _run(self, engine: Engine, history: UserHistory) -> None:
        try:
            outcome: PrefetchResult | RelayError = engine.prefetch(history)
        except RelayError as error:
            outcome = error
        self.ended = time.perf_counter()
        self._outcome = outcome


def shuffled(items: Int64s, seed: int) -> Int64s:
    """In an order that says nothing about where an item came from; the same every time."""
    mixed: Int64s = np.random.default_rng(seed).permutation(items)
    return mixed


def replay(cascade: Cascade, visits: list[Visit], observe: Callable[[int], None]) -> dict[Mode, list[Lap]]:
    """Every visit in every mode, the modes taking turns so that a slow moment of the machine hits all alike.

    Returns:
        Laps in the order of `visits`.
    """
    modes = list(Mode)
    laps: dict[Mode, list[Lap]] = {mode: [] for mode in modes}
    for done, visit in enumerate(visits):
        turn = done % len(modes)
        for mode in modes[turn:] + modes[:turn]:
            laps[mode].append(cascade.run(visit, mode))
        observe(done + 1)
    return laps
