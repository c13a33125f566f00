"""Demotion: each repetition of an author, a topic or another attribute takes a share of the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from relaygr.config.limits import Range
from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise.arrays import Float64, Int64
from relaygr.listwise.decode import decode
from relaygr.listwise.generators.relevance import Relevance, scale_of
from relaygr.listwise.generators.rerank import by_score
from relaygr.listwise.pool import MISSING
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene

_DEFAULT = MappingProxyType({"author": (1.0, 0.5, 0.25), "topic": (1.0, 0.9, 0.8, 0.7)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Demotion:
    """The allowed candidate of the highest `rel * product over attributes of factor[picks like it]`.

    Attributes:
        factors: attribute -> factors in [0, 1] after 0, 1, 2, ... picks of the same value; the last one holds
            for all greater numbers. Attributes that the pool lacks are left out.
        carry: how many of the items that were shown last count as picks.
        relevance: the scale of `rel`, which must not be negative.
    """

    factors: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: _DEFAULT)
    carry: int = 3
    relevance: Relevance = "unit"

    def __post_init__(self) -> None:
        Range(0, 1000).check("demotion.carry", self.carry)
        for attribute, row in self.factors.items():
            if not row:
                raise ConfigError(f"demotion.factors.{attribute}", "[] must hold at least one factor")
            for factor in row:
                Range(0, 1).check(f"demotion.factors.{attribute}", factor)

    @property
    def name(self) -> str:
        return "demotion"

    def scorer(self, scene: Scene) -> DemotionScorer:
        return DemotionScorer(self, scene)

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        return decode(scene, self.name, by_score(self.scorer(scene)), budget)


class DemotionScorer:
    """Keeps for each attribute the number of picks of every candidate's value. int64 [C] each"""

    def __init__(self, settings: Demotion, scene: Scene) -> None:
        self._rel = scale_of(scene, settings.relevance)
        lowest = float(self._rel(scene.value[-1:])[0])
        if lowest < 0:
            raise RequestError("value", f"{lowest:g} is below 0, which demotion cannot scale; use 'unit'")
        self._columns: list[tuple[Int64, Float64]] = []
        shown, self._counts = scene.ask.shown, list[Int64]()
        for attribute, row in settings.factors.items():
            if attribute not in scene.pool.attributes:
                continue
            values = scene.pool.attributes[attribute]
            self._columns.append((values, np.array(row)))
            counts = np.zeros(len(scene), dtype=np.int64)
            if shown is not None and settings.carry:
                for value in shown.attributes.get(attribute, values[:0])[-settings.carry :].tolist():
                    counts += (values == value) & (value != MISSING)
            self._counts.append(counts)

    def take(self, item: int) -> None:
        for (values, _), counts in zip(self._columns, self._counts, strict=True):
            if values[item] != MISSING:
                counts += values == values[item]

    def scores(self, value: Float64) -> Float64:
        scores = np.maximum(self._rel(value), 0.0)  # a price may take it below
        for (_, factors), counts in zip(self._columns, self._counts, strict=True):
            scores = scores * factors[np.minimum(counts, len(factors) - 1)]
        return scores
