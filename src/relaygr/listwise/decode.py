"""One list, position by position, under the rules: what all sequential generators share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int32
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene

ROOT = np.zeros(1, dtype=np.int64)

# (position t, picks so far, allowed [C], value less the price of soft rules [C]) -> an allowed column.
# The values are `scene.value` itself unless a soft rule applies.
Pick = Callable[[int, list[int], Bool, Float64], int]


def decode(scene: Scene, name: str, pick: Pick, budget: Budget) -> list[Proposal]:
    """The list that `pick` makes, or the rescue search's if it met a dead end; none if there is no list."""
    walk = scene.walk
    marks, picks = walk.start(), list[int]()
    for t in range(walk.length):
        budget.check()
        mask = walk.allowed(marks, t)[0]
        if not mask.any():
            return rescued(scene, name, np.array(picks, dtype=np.int32))
        value = scene.value - walk.price(marks, t)[0] if walk.priced else scene.value
        picks.append(pick(t, picks, mask, value))
        if t + 1 < walk.length:
            marks = walk.step(marks, t, ROOT, np.array(picks[-1:], dtype=np.int64))
    return [Proposal(np.array(picks, dtype=np.int32), name)]


def rescued(scene: Scene, name: str, prefix: Int32) -> list[Proposal]:
    """What the exact search makes of a prefix [t] that met a dead end."""
    made = scene.walk.rescue(prefix, scene.value)
    return [] if made is None else [Proposal(made, name, exact=False)]


def best(mask: Bool, scores: Float64) -> int:
    """The allowed column of the highest score, the lowest of equal ones.

    An allowed one whatever the scores are: all of them may be -inf.
    """
    columns = np.flatnonzero(mask)
    return int(columns[scores[columns].argmax()])
