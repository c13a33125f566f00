"""What the greedy re-rankers share: a score for every candidate that changes with each pick."""

from __future__ import annotations

from typing import Protocol

from relaygr.listwise.arrays import Bool, Float64
from relaygr.listwise.decode import Pick, best


class Scorer(Protocol):
    """Scores of one list in the making; a new one for every list."""

    def scores(self, value: Float64) -> Float64:
        """Of all candidates for the next position, given values less prices [C]. [C]"""

    def take(self, item: int) -> None:
        """The candidate has been picked."""


def by_score(scorer: Scorer) -> Pick:
    """The allowed candidate of the highest score at every position."""

    def pick(t: int, picks: list[int], mask: Bool, value: Float64) -> int:
        if picks:
            scorer.take(picks[-1])
        return best(mask, scorer.scores(value))

    return pick
