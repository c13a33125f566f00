"""The lists that compete for one request: the union of what generators propose, and their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.choose import Choice
from relaygr.listwise.evaluate import Evaluator
from relaygr.listwise.proposal import Proposal
from relaygr.listwise.result import Candidate, Dropped
from relaygr.listwise.scene import Scene


class Ballot:
    """Lists in the order of their arrival, each once: the first generator that proposed it is kept."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._places: dict[bytes, int] = {}
        self.proposals: list[Proposal] = []
        self.also: list[list[str]] = []
        self.dropped: list[Dropped] = []
        self._values: list[Float64] = []  # [E] each; lists are valued in the order of their arrival

    def __len__(self) -> int:
        return len(self.proposals)

    @property
    def valued(self) -> int:
        """How many lists have values: the first ones."""
        return len(self._values)

    def add(
        self, proposals: Iterable[Proposal], broken: Callable[[Int32], Sequence[str]] | None = None
    ) -> None:
        """Lists that are not there yet, less those for which `broken` has something to say."""
        for one in proposals:
            key = one.picks.astype(np.int32).tobytes()
            place = self._places.get(key)
            if place is None:
                wrong = () if broken is None else tuple(broken(one.picks))
                if wrong:
                    self.dropped.append(Dropped(one.generator, wrong))
                    continue
                self._places[key] = len(self.proposals)
                self.proposals.append(one)
                self.also.append([])
            elif one.generator not in (self.proposals[place].generator, *self.also[place]):
                self.also[place].append(one.generator)

    def evaluate(self, evaluator: Evaluator) -> None:
        """Value those that have none yet, in one batch."""
        fresh = self.proposals[self.valued :]
        if fresh:
            utility = evaluator.evaluate(self._scene, stack(fresh))  # [E, G]
            self._values.extend(np.ascontiguousarray(utility.T))

    @property
    def utility(self) -> Float64:
        """Of the lists that have values. [E, valued]"""
        return np.array(self._values).T

    @property
    def generators(self) -> list[str]:
        """Who proposed the lists that have values, first of all."""
        return [one.generator for one in self.proposals[: self.valued]]

    def bounds(self, choice: Choice) -> Float64:
        """Lower bounds of the lists that have values. [valued]"""
        return choice.lower_bounds(self.utility, self._scene.length, self.generators)

    def choose(self, choice: Choice) -> int:
        """The list to return among those that have values; list 0 is the fallback."""
        return choice(self.utility, self._scene.length, self.generators)

    def candidates(self, choice: Choice) -> tuple[Candidate, ...]:
        """All lists, by columns of the request."""
        scores, bounds = self.utility.mean(0), self.bounds(choice)
        found = []
        for at, one in enumerate(self.proposals):
            valued = at < self.valued
            found.append(
                Candidate(
                    one.generator,
                    tuple(self.also[at]),
                    self._scene.columns[one.picks].astype(np.int32),
                    float(scores[at]) if valued else None,
                    float(bounds[at]) if valued else None,
                    one.log_propensity,
                )
            )
        return tuple(found)


def stack(proposals: Sequence[Proposal]) -> Int32:
    """Lists of one length. [G, L]"""
    return np.stack([one.picks for one in proposals]).astype(np.int32)
