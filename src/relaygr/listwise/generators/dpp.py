"""Greedy MAP of a determinantal point process (Chen, Zhang and Zhou, 2018), by Cholesky updates.

The kernel is K_ij = exp(strength * rel_i) * sim_ij * exp(strength * rel_j). The determinant ratio of one
more candidate splits into exp(2 * strength * rel_i) and the Schur complement of `sim` alone, which is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.config.limits import Range
from relaygr.listwise.arrays import Bool, Float64
from relaygr.listwise.decode import best, decode
from relaygr.listwise.generators.relevance import Relevance, scale_of
from relaygr.listwise.generators.similarity import Similarities
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene

SMALLEST = 1e-12  # determinant ratios below it are rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpp:
    """The allowed candidate of the largest determinant ratio; below `SMALLEST`, the pointwise order.

    Attributes:
        strength: eta, how much value weighs against variety.
        window: a pick counts against the next window - 1 only; None for the whole list.
        carry: how many of the items that were shown last count as picks, within the window.
        relevance: the scale of `rel`.
    """

    strength: float = 1.0
    window: int | None = None
    carry: int = 3
    relevance: Relevance = "unit"

    def __post_init__(self) -> None:
        Range(0, 1e6).check("dpp.strength", self.strength)
        Range(0, 1000).check("dpp.carry", self.carry)
        if self.window is not None:
            Range(2, 1000).check("dpp.window", self.window)

    @property
    def name(self) -> str:
        return f"dpp({self.strength:g})" if self.window is None else f"dpp({self.strength:g},{self.window})"

    def scorer(self, scene: Scene) -> DppScorer:
        return DppScorer(self, scene)

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        scorer = self.scorer(scene)

        def pick(t: int, picks: list[int], mask: Bool, value: Float64) -> int:
            if picks:
                scorer.take(picks[-1])
            scores = scorer.scores(value)
            first = best(mask, scores)
            return first if scores[first] >= np.log(SMALLEST) else best(mask, value)

        return decode(scene, self.name, pick, budget)


class DppScorer:
    """Keeps the Schur complement of `sim` over the picks in the window, and the Cholesky rows behind it.

    Scores are logarithms of determinant ratios.
    """

    def __init__(self, settings: Dpp, scene: Scene) -> None:
        self._strength, self._rel = settings.strength, scale_of(scene, settings.relevance)
        self._count, self._reach = len(scene), None if settings.window is None else settings.window - 1
        carry = settings.carry if self._reach is None else min(settings.carry, self._reach)
        self._similarity = Similarities(scene, carry)
        self._picks: list[int] = []  # in the window
        self._left, self._rows = np.ones(len(self._similarity)), list[Float64]()
        for before in range(self._count, len(self._similarity)):
            self.take(before)

    def take(self, item: int) -> None:
        self._picks.append(item)
        if self._reach is None or len(self._picks) <= self._reach:
            self._condition(item)
            return
        # Every row depends on the one that leaves, so all are made anew from the few picks that stay.
        del self._picks[0]
        self._left, self._rows = np.ones(len(self._similarity)), []
        for pick in self._picks:
            self._condition(pick)

    def scores(self, value: Float64) -> Float64:
        left = self._left[: self._count]
        with np.errstate(divide="ignore"):
            logs = np.log(np.where(left < SMALLEST, 0.0, left))
        return 2.0 * self._strength * self._rel(value) + logs

    def _condition(self, item: int) -> None:
        if self._left[item] < SMALLEST:  # in the span of the others: it tells nothing new
            return
        row = self._similarity.row(item).copy()
        for other in self._rows:
            row -= other[item] * other
        row /= np.sqrt(self._left[item])
        self._left = self._left - row * row
        self._rows.append(row)
