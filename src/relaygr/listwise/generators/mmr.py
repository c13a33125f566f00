"""Maximal marginal relevance (Carbonell and Goldstein, 1998): value against the most similar pick so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.config.limits import Range
from relaygr.listwise.arrays import Float64
from relaygr.listwise.decode import decode
from relaygr.listwise.generators.relevance import Relevance, scale_of
from relaygr.listwise.generators.rerank import by_score
from relaygr.listwise.generators.similarity import Similarities
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmr:
    """The highest `trade * rel - (1 - trade) * largest similarity to a pick` that is allowed.

    Attributes:
        trade: lambda, from 0 (variety alone) to 1 (value alone).
        window: a pick counts against the next window - 1 only; None for the whole list.
        positive: vectors' similarity is max(0, cosine), so that unlike items are no better than unrelated
            ones, instead of (1 + cosine) / 2.
        carry: how many of the items that were shown last count as picks, within the window.
        relevance: the scale of `rel`.
    """

    trade: float = 0.7
    window: int | None = None
    positive: bool = False
    carry: int = 3
    relevance: Relevance = "unit"

    def __post_init__(self) -> None:
        Range(0, 1).check("mmr.trade", self.trade)
        Range(0, 1000).check("mmr.carry", self.carry)
        if self.window is not None:
            Range(2, 1000).check("mmr.window", self.window)

    @property
    def name(self) -> str:
        window = "" if self.window is None else f",{self.window}"
        return f"mmr({self.trade:g}{window}{',positive' if self.positive else ''})"

    def scorer(self, scene: Scene) -> MmrScorer:
        return MmrScorer(self, scene)

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        return decode(scene, self.name, by_score(self.scorer(scene)), budget)


class MmrScorer:
    """Keeps the similarities to the picks in the window: their largest, one column a pick."""

    def __init__(self, settings: Mmr, scene: Scene) -> None:
        self._trade, self._rel = settings.trade, scale_of(scene, settings.relevance)
        self._count, self._reach = len(scene), None if settings.window is None else settings.window - 1
        carry = settings.carry if self._reach is None else min(settings.carry, self._reach)
        self._similarity = Similarities(scene, carry)
        self._positive = settings.positive and scene.pool.vectors is not None
        self._recent = list[Float64]()
        self._nearest = np.zeros(len(scene))
        for before in range(len(scene), len(self._similarity)):
            self.take(before)

    def take(self, item: int) -> None:
        column = self._similarity.row(item)[: self._count]
        if self._positive:
            column = np.maximum(2.0 * column - 1.0, 0.0)
        if self._reach is None:
            self._nearest = np.maximum(self._nearest, column)
            return
        self._recent = [*self._recent, column][-self._reach :]
        self._nearest = np.maximum.reduce(self._recent)

    def scores(self, value: Float64) -> Float64:
        return self._trade * self._rel(value) - (1.0 - self._trade) * self._nearest
