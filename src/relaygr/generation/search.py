"""One request on its way through the rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from relaygr.generation.catalogue.errors import CatalogueError, FilterError
from relaygr.generation.catalogue.filters import Filter
from relaygr.generation.catalogue.index import CatalogueIndex, Int64s
from relaygr.generation.columns import HeadPlan
from relaygr.generation.errors import (
    CatalogUnavailableError,
    FilterFailedError,
    GenerateCancelledError,
    GenerateDeadlineError,
    GenerateError,
    InternalError,
    ModelNanError,
)
from relaygr.generation.normalise import NonFiniteError, Normalization
from relaygr.generation.prepare import Pool, prepare
from relaygr.generation.results import Found, ItemLimits, Timings, rows_of, underflow
from relaygr.generation.select import Beams, Method, select
from relaygr.generation.widths import Widths

log = logging.getLogger("relaygr.generation")

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True, eq=False)
class SearchPlan:
    """What selection needs to know of a request.

    Attributes:
        index: of the catalogue version that the request is pinned to.
        heads: the token map of that version, as columns.
        widths: one a level of the index.
        items: the request's filters; None if there are none and the version withdraws nothing.
        seed: samples by noise of this seed; None takes the best.
        method: how the best are found; the result is the same.
    """

    request_id: str
    index: CatalogueIndex
    heads: HeadPlan
    widths: Widths
    normalization: Normalization = Normalization.LEVEL
    items: Filter | None = None
    limits: ItemLimits = field(default_factory=ItemLimits)
    seed: int | None = None
    method: Method = "threshold"

    def __post_init__(self) -> None:
        if len(self.widths) != self.index.levels:
            raise ValueError(f"{len(self.widths)} widths for {self.index.levels} levels")
        if self.heads.levels != self.index.levels:
            raise ValueError(f"a token map of {self.heads.levels} levels for {self.index.levels}")


@dataclass(slots=True)
class _Clocked:
    prefill_ms: float = 0.0
    head_ms: list[float] = field(default_factory=list)
    selection_ms: list[float] = field(default_factory=list)
    preparation_ms: list[float] = field(default_factory=list)
    waited_ms: list[float] = field(default_factory=list)
    forward_ms: list[float] = field(default_factory=list)

    def frozen(self) -> Timings:
        return Timings(
            self.prefill_ms,
            tuple(self.head_ms),
            tuple(self.selection_ms),
            tuple(self.preparation_ms),
            tuple(self.waited_ms),
            tuple(self.forward_ms),
        )


class Search(Generic[Context]):
    """A request's state between rounds: nodes and scores, nothing else. Ends in exactly one outcome.

    Args:
        plan: what to search.
        context: what the model knows the request by (its prompt, its beams' memory).
        on_end: told the outcome once, at once, so that memory is free before the next round; must not raise.
        deadline_s: on the clock of the rounds.
        cancelled: asked before every round whether anybody still wants the answer.

    Attributes:
        rounds: what each round so far selected.
        pool: future of the next round's candidates.
        outcome: None until it has ended.
        clocked: times so far.
    """

    def __init__(
        self,
        plan: SearchPlan,
        context: Context,
        on_end: Callable[[Found | GenerateError], None],
        *,
        deadline_s: float = float("inf"),
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.plan, self.context, self.deadline_s = plan, context, deadline_s
        self._on_end, self._cancelled = on_end, cancelled
        self.rounds: list[Beams] = []
        self.pool: Future[Pool] | None = None
        self.outcome: Found | GenerateError | None = None
        self.clocked = _Clocked()

    @property
    def request_id(self) -> str:
        return self.plan.request_id

    @property
    def level(self) -> int:
        """Of the next selection."""
        return len(self.rounds) + 1

    @property
    def live(self) -> bool:
        return self.outcome is None

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to select."""
        return len(self.rounds) == self.plan.index.levels or (
            bool(self.rounds) and len(self.rounds[-1].nodes) == 0
        )

    def end(self, outcome: Found | GenerateError) -> None:
        """Give the outcome, unless there is one."""
        if self.outcome is None:
            self.outcome = outcome
            self._on_end(outcome)

    def fail(self, error: Exception) -> None:
        """End in the typed error that `error` stands for."""
        self.end(typed(self.request_id, error))

    def check(self, now_s: float) -> None:
        """End if nobody wants the answer any more, or it is too late for it."""
        if self.live and self._cancelled():
            self.end(GenerateCancelledError(self.request_id, f"cancelled before round {self.level}"))
        elif self.live and now_s >= self.deadline_s:
            self.end(GenerateDeadlineError(self.request_id, f"deadline passed before round {self.level}"))

    def prepare(self) -> Pool:
        """The candidates of the next round. On any thread; the state does not change meanwhile."""
        plan = self.plan
        nodes = self.rounds[-1].nodes if self.rounds else np.zeros(1, dtype=np.int64)
        return prepare(plan.index, self.level, nodes, plan.heads, plan.normalization, plan.items)

    def select(self, pool: Pool, logits: Tensor) -> None:
        """Take the next round's beams."""
        plan = self.plan
        scores = self.rounds[-1].scores if self.rounds else np.zeros(1)
        width = plan.widths.of(self.level)
        beams = select(pool, scores, logits, width, plan.normalization, seed=plan.seed, method=plan.method)
        self.rounds.append(beams)

    def fed(self) -> Int64s:
        """The tokens that the last round selected. [W]"""
        return self.plan.heads.tokens(len(self.rounds), self.rounds[-1].codes)

    def found(self) -> Found:
        """The result, after the last round."""
        plan, last = self.plan, self.rounds[-1]
        # A search that ran empty early has no leaves, and no nodes either.
        rows, left_out = rows_of(plan.index, last, plan.limits, plan.items) if len(last.nodes) else ((), 0)
        return Found(
            rows=rows,
            requested=plan.widths.results,
            underflow=underflow(plan.widths.results, self.rounds),
            normalization=plan.normalization,
            items_left_out=left_out,
            candidates=tuple(beams.candidates for beams in self.rounds),
            kept=tuple(len(beams.nodes) for beams in self.rounds),
            timings=self.clocked.frozen(),
        )


def typed(request_id: str, error: Exception) -> GenerateError:
    """The error of a request that `error` ended; what nobody foresaw is internal, and logged."""
    if isinstance(error, GenerateError):
        return error
    kind: type[GenerateError] = InternalError
    if isinstance(error, FilterError):
        kind = FilterFailedError
    elif isinstance(error, CatalogueError):
        kind = CatalogUnavailableError
    elif isinstance(error, NonFiniteError):
        kind = ModelNanError
    else:
        log.error("request %s failed", request_id, exc_info=error)
    made = kind(request_id, str(error) or type(error).__name__)
    made.__cause__ = error
    return made
