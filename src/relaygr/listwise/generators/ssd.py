"""Sliding spectrum decomposition (Huang et al., 2021), as a greedy rule: value plus what a vector adds.

The score is `rel_i + strength * |r_i|`, with r_i the item's vector less its projection on the span of the
last window - 1 picks. That is this project's reading; the published method weighs volumes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.config.limits import Range
from relaygr.core.errors import RequestError
from relaygr.listwise.arrays import Float64
from relaygr.listwise.decode import decode
from relaygr.listwise.generators.relevance import Relevance, scale_of
from relaygr.listwise.generators.rerank import by_score
from relaygr.listwise.generators.similarity import unit
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene

_PARALLEL = 1e-9  # a residual shorter than this gives no direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssd:
    """The allowed candidate of the highest `rel + strength * residual`.

    Attributes:
        strength: gamma, how much variety weighs against value.
        window: a pick counts against the next window - 1 only.
        carry: how many of the items that were shown last count as picks, within the window.
        relevance: the scale of `rel`.
    """

    strength: float = 0.5
    window: int = 4
    carry: int = 3
    relevance: Relevance = "unit"

    def __post_init__(self) -> None:
        Range(0, 1e6).check("ssd.strength", self.strength)
        Range(2, 1000).check("ssd.window", self.window)
        Range(0, 1000).check("ssd.carry", self.carry)

    @property
    def name(self) -> str:
        return f"ssd({self.strength:g},{self.window})"

    def scorer(self, scene: Scene) -> SsdScorer:
        return SsdScorer(self, scene)

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        return decode(scene, self.name, by_score(self.scorer(scene)), budget)


class SsdScorer:
    """Keeps the residuals of all candidates, by modified Gram-Schmidt. float64 [C + n, Dv]"""

    def __init__(self, settings: Ssd, scene: Scene) -> None:
        if scene.pool.vectors is None:
            raise RequestError("vectors", "are needed for residuals, and the pool has none")
        self._strength, self._rel = settings.strength, scale_of(scene, settings.relevance)
        self._count, self._reach = len(scene), settings.window - 1
        vectors, shown = scene.pool.vectors, scene.ask.shown
        carry = min(settings.carry, self._reach)
        if shown is not None and shown.vectors is not None and carry:
            vectors = np.concatenate([vectors, shown.vectors[-carry:]])
        self._vectors = unit(vectors)
        self._residuals = self._vectors
        self._picks: list[int] = []  # in the window
        for before in range(self._count, len(self._vectors)):
            self.take(before)

    def take(self, item: int) -> None:
        self._picks.append(item)
        if len(self._picks) <= self._reach:
            self._project(item)
            return
        # What the pick that leaves had removed cannot be put back exactly: the span is made anew.
        del self._picks[0]
        self._residuals = self._vectors
        for pick in self._picks:
            self._project(pick)

    def scores(self, value: Float64) -> Float64:
        residuals = self._residuals[: self._count]
        lengths = np.sqrt(np.einsum("cd,cd->c", residuals, residuals))
        scores: Float64 = self._rel(value) + self._strength * lengths
        return scores

    def _project(self, item: int) -> None:
        direction = self._residuals[item]
        length = float(np.sqrt(direction @ direction))
        if length > _PARALLEL:
            direction = direction / length
            self._residuals = self._residuals - np.outer(self._residuals @ direction, direction)
