"""The rounds of a group of requests: prefill, then select and feed until each has its results.

Requests of different widths, catalogue versions, filters and levels run side by side; what they share is
forwards, and nothing of one reaches another. A request that ends, in whatever way, is told at once and is in
no later forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol

import torch
from torch import Tensor

from relaygr.core.clock import Clock
from relaygr.generation.ancestors import Ancestors
from relaygr.generation.columns import Columns
from relaygr.generation.prepare import Pool
from relaygr.generation.search import Context, Search
from relaygr.generation.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Feed(Generic[Context]):
    """One request's part of a decode forward.

    Attributes:
        context: of the request.
        tokens: int64 [W], the code each beam selected last, as a token.
        depth: which code it is, from 1.
        anc: int32 [W, depth], the slots of each beam's ancestors; the last column is its own. Slots count
            from 0 in each depth, which has as many as its round's width. A view, valid during the call.
    """

    context: Context
    tokens: Tensor
    depth: int
    anc: Tensor


class BeamModel(Protocol[Context]):
    """What the rounds need of a model. A request's rows must not depend on the other rows of a call.

    An exception ends all requests of the call.
    """

    def start(self, contexts: Sequence[Context]) -> Tensor:
        """Compute prompts; their last hidden states. [n, D]"""

    def step(self, feeds: Sequence[Feed[Context]]) -> Tensor:
        """Feed each beam its last code; hidden states, request by request. [sum of W, D]"""

    def logits(self, hidden: Tensor, columns: Columns) -> Tensor:
        """Chosen columns of the head, for the rows of one request. float32 [W, columns]"""


class _Running(Generic[Context]):
    """A search with what the model needs of its beams: hidden states [W, D] and ancestors."""

    def __init__(self, search: Search[Context], hidden: Tensor) -> None:
        self.search, self.hidden = search, hidden
        fed = search.plan.widths.fed
        # With one level nothing is ever fed.
        self._ancestors = Ancestors(fed) if fed else None

    def feed(self) -> Feed[Context]:
        assert self._ancestors is not None
        search = self.search
        anc = self._ancestors.fork(torch.from_numpy(search.rounds[-1].parents))
        return Feed(search.context, torch.from_numpy(search.fed()), self._ancestors.depth, anc)


class Rounds(Generic[Context]):
    """Runs searches on a model; one thread calls it.

    Args:
        model: computes.
        clock: of deadlines and of the trace.
        worker: prepares rounds while forwards run; None does it in between, on the calling thread.
        trace: gets the spans.

    `join` and `advance` may alternate, so that requests join those on their way; `run` takes one group
    through all rounds. Neither raises for what goes wrong with a request: that is the request's outcome.
    """

    def __init__(
        self,
        model: BeamModel[Context],
        clock: Clock,
        worker: Executor | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._model, self._clock, self._worker = model, clock, worker
        self.trace = Trace(clock) if trace is None else trace
        self._running: list[_Running[Context]] = []
        self._step = 0

    def __len__(self) -> int:
        """Requests on their way."""
        return len(self._running)

    @property
    def rows(self) -> int:
        """Beam rows that the widest forward of those on their way may have."""
        return sum(one.search.plan.widths.rows for one in self._running)

    def run(self, searches: Sequence[Search[Context]]) -> None:
        """Take a group through all rounds; afterwards each has its outcome."""
        self.join(searches)
        while self._running:
            self.advance()

    def join(self, searches: Sequence[Search[Context]]) -> None:
        """Compute the prompts of those that somebody still waits for."""
        for search in searches:
            search.check(self._clock.now_s())
        live = [search for search in searches if search.live]
        if not live:
            return
        with self._group(live), self._preparing(live):
            with self.trace.span("prefill", self._step):
                began = self._clock.now_s()
                hidden = self._model.start([search.context for search in live])
                took = self._ms_since(began)
            for search, row in zip(live, torch.split(hidden, 1), strict=True):
                search.clocked.prefill_ms = took
                self._running.append(_Running(search, row))
        self._sweep()

    def advance(self) -> None:
        """One round of each request on its way: select, then feed what goes on."""
        with self._group([one.search for one in self._running]):
            for one in self._running:
                one.search.check(self._clock.now_s())
                if one.search.live:
                    self._select(one)
            self._sweep()
            # Others of the group have been selected from since; a forward is what must not be wasted.
            for one in self._running:
                one.search.check(self._clock.now_s())
            self._sweep()
            if self._running:
                self._feed()
        self._sweep()
        self._step += 1

    def _select(self, one: _Running[Context]) -> None:
        search = one.search
        try:
            pool = search.pool.result() if search.pool is not None else self._prepared(search)
            began = self._clock.now_s()
            with self.trace.span("head", self._step, search.request_id):
                logits = self._model.logits(one.hidden, pool.head.columns).cpu()
            middle = self._clock.now_s()
            with self.trace.span("select", self._step, search.request_id):
                search.select(pool, logits)
            search.clocked.head_ms.append((middle - began) * 1e3)
            search.clocked.selection_ms.append(self._ms_since(middle))
            if search.finished:
                search.end(search.found())
        except Exception as error:  # noqa: BLE001 - what is wrong with one request must not reach another
            search.fail(error)

    def _feed(self) -> None:
        with self._preparing([one.search for one in self._running]):
            feeds = [one.feed() for one in self._running]
            began = self._clock.now_s()
            with self.trace.span("forward", self._step):
                hidden = self._model.step(feeds)
            took = self._ms_since(began)
            parts = torch.split(hidden, [len(feed.tokens) for feed in feeds])
            for one, part in zip(self._running, parts, strict=True):
                one.hidden = part
                one.search.clocked.forward_ms.append(took)

    @contextmanager
    def _group(self, searches: Sequence[Search[Context]]) -> Iterator[None]:
        """End all of `searches` if what they share fails, so that none waits for ever."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as above, for what a group shares
            for search in searches:
                search.fail(error)
        except BaseException:
            for search in searches:
                search.fail(RuntimeError("the computation was stopped"))
            raise

    @contextmanager
    def _preparing(self, searches: Sequence[Search[Context]]) -> Iterator[None]:
        """Prepare the next round of `searches` on the worker while the body runs, and wait for it."""
        if self._worker is None:
            for search in searches:
                search.pool = None
            yield
            return
        futures = [self._worker.submit(self._prepared, search) for search in searches]
        for search, future in zip(searches, futures, strict=True):
            search.pool = future
        try:
            yield
        finally:
            began = self._clock.now_s()
            with self.trace.span("wait", self._step):
                wait(futures)
            waited = self._ms_since(began)
            for search in searches:
                search.clocked.waited_ms.append(waited)

    def _prepared(self, search: Search[Context]) -> Pool:
        began = self._clock.now_s()
        with self.trace.span("prepare", self._step, search.request_id):
            pool = search.prepare()
        search.clocked.preparation_ms.append(self._ms_since(began))
        return pool

    def _sweep(self) -> None:
        self._running = [one for one in self._running if one.search.live]

    def _ms_since(self, began_s: float) -> float:
        return (self._clock.now_s() - began_s) * 1e3
