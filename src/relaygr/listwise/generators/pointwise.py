"""The pointwise order, repaired where rules forbid it: the fallback of every request."""

from __future__ import annotations

from relaygr.listwise.decode import best, decode
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene

NAME = "pointwise"


class Pointwise:
    """At each position the candidate of the highest value, less the price of soft rules, that is allowed.

    The rules may have made that very list when they were opened; it is taken over then.
    """

    name = NAME

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        walk = scene.walk
        if walk.first is not None and not walk.priced:  # columns are in the order of value
            return [Proposal(walk.first, self.name)]
        return decode(scene, self.name, lambda t, picks, mask, value: best(mask, value), budget)
