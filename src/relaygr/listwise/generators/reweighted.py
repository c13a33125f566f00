"""The pointwise list under other weights: what the ranker's heads would suggest to another value function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relaygr.listwise.arrays import Bool, Float64
from relaygr.listwise.decode import best, decode
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True)
class Reweighted:
    """At each position the allowed candidate of the highest value under `value`; ties by pointwise rank.

    Attributes:
        label: names the weights.
        value: values [C] of the natural outputs [K, C] of the heads.
    """

    label: str
    value: Callable[[Float64], Float64]

    @property
    def name(self) -> str:
        return f"reweighted({self.label})"

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        other = self.value(scene.pool.natural())

        def pick(t: int, picks: list[int], mask: Bool, value: Float64) -> int:
            return best(mask, other - (scene.value - value))  # prices are the same for all weights

        return decode(scene, self.name, pick, budget)
