"""A small share of requests gets lists that were drawn at random, so that logs say what choices cannot.

A list that wins a comparison has no propensity worth logging: which one wins depends on what it was compared
with. A drawn list is returned as it is, and its propensity is that of one Plackett-Luce draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from relaygr.config.limits import Range
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.request import seed_of
from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Explorer:
    """Which requests explore, and what they get.

    Both follow from `seed` and the request's `explore`, in every process alike, and from nothing else:
    whether a request explores says nothing about its candidates.

    Attributes:
        share: of the requests, 0 to 1.
        temperature: of the draw, in units of the region's values on the scale 0..1.
        seed: another one takes other requests and draws other lists.
    """

    share: float
    temperature: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        Range(0, 1).check("explorer.share", self.share)
        Range(0, 1e6, open_low=True).check("explorer.temperature", self.temperature)

    @property
    def name(self) -> str:
        """As `generator` of drawn lists."""
        return f"explore({self.temperature:g})"

    @property
    def model(self) -> PlackettLuce:
        """What the lists are drawn from."""
        return PlackettLuce(temperature=self.temperature)

    def takes(self, key: str) -> bool:
        """Whether the request of this key explores; never one without."""
        return bool(key) and seed_of(f"{self.seed} {key}", "explore") < self.share * 2**64

    def draw(self, scene: Scene, budget: Budget) -> Proposal | None:
        """One list of a trust region's scene; None if the draw met a dead end and has no propensity.

        Raises:
            SlateDeadlineError: the time is over.
        """
        mine = replace(scene, ask=replace(scene.ask, request_id=f"explore {self.seed} {scene.ask.explore}"))
        made = self.model.propose(mine, budget)
        if not made or made[0].log_propensity is None:
            return None
        return replace(made[0], generator=self.name)
