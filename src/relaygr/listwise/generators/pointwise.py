"""The pointwise order, repaired where rules forbid it: the fallback of every request."""

from __future__ import annotations

from relaygr.listwise.decode import best, decode
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene

NAME = "pointwise"


class Pointwise:
    """At each position the candidate of the highest value, less the price of soft rules, that is allowed."""

    name = NAME

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        return decode(scene, self.name, lambda t, picks, mask, value: best(mask, value), budget)
