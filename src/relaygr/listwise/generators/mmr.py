"""Maximal marginal relevance (Carbonell and Goldstein, 1998): value against the most similar pick so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.config.limits import Range
from relaygr.listwise.arrays import Float64
from relaygr.listwise.decode import decode
from relaygr.listwise.generators.relevance import Relevance, scale_of
from relaygr.listwise.generators.rerank import by_score
from relaygr.listwise.generators.similarity import similarity
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmr:
    """The highest `trade * rel - (1 - trade) * largest similarity to a pick` that is allowed.

    Attributes:
        trade: lambda, from 0 (variety alone) to 1 (value alone).
        carry: how many of the items that were shown last count as picks.
        relevance: the scale of `rel`.
    """

    trade: float = 0.7
    carry: int = 3
    relevance: Relevance = "unit"

    def __post_init__(self) -> None:
        Range(0, 1).check("mmr.trade", self.trade)
        Range(0, 1000).check("mmr.carry", self.carry)

    @property
    def name(self) -> str:
        return f"mmr({self.trade:g})"

    def scorer(self, scene: Scene) -> MmrScorer:
        return MmrScorer(self, scene)

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        return decode(scene, self.name, by_score(self.scorer(scene)), budget)


class MmrScorer:
    """Keeps the largest similarity to the picks: one column a pick."""

    def __init__(self, settings: Mmr, scene: Scene) -> None:
        self._trade, self._rel = settings.trade, scale_of(scene, settings.relevance)
        self._count = len(scene)
        self._similarity = similarity(scene, settings.carry)
        self._nearest = np.zeros(len(scene))
        for before in range(len(scene), len(self._similarity)):
            self.take(before)

    def take(self, item: int) -> None:
        self._nearest = np.maximum(self._nearest, self._similarity[item, : self._count])

    def scores(self, value: Float64) -> Float64:
        return self._trade * self._rel(value) - (1.0 - self._trade) * self._nearest
