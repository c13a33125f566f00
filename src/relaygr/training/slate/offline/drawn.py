"""Lists that servers drew at random, and the policy that they were drawn by: read from the log itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from relaygr.listwise.arrays import Bool, Int64
from relaygr.listwise.masks import NoRules, Rules
from relaygr.listwise.scene import Scene
from relaygr.listwise.slate_log import Drawn
from relaygr.training.slate.offline.explored import Explored
from relaygr.training.slate.offline.policies import columns_of, followers
from relaygr.training.slate.read_log import ReadLog


@dataclass(frozen=True, slots=True)
class Alike:
    """Explored lists that were drawn in one way.

    Attributes:
        rows: of the log.
        drawn: how; None where the log does not say.
        notes: what was left out, and why.
    """

    rows: Int64
    drawn: Drawn | None
    notes: tuple[str, ...]


def drawn_alike(log: ReadLog, rows: Int64, value: str, rules: Rules | None, as_drawn: bool) -> Alike:
    """Of the lists `rows`, those with propensities whose policy can be told again.

    Args:
        value: version of the value function, by which candidates are in order.
        rules: that lists were made under; None for none.
        as_drawn: only lists of the most frequent draw that the log tells, if it tells any.
    """
    wanted, notes = (rules or NoRules()).version, list[str]()
    explored = rows[log.logs.explored[rows]]
    origins = [log.origins[n] for n in explored.tolist()]
    same = [one.value in ("", value) and one.rules in ("", wanted) for one in origins]
    kept = explored[np.array(same, dtype=bool)]
    if len(kept) < len(explored):
        notes.append(
            f"{len(explored) - len(kept):,} of {len(explored):,} explored lists were left out of estimates: "
            f"made by another value function than {value}, or under other rules than {wanted}"
        )
    told = Counter(drawn for n in kept.tolist() if (drawn := log.origins[n].drawn) is not None)
    if not as_drawn or not told:
        return Alike(kept, None, tuple(notes))
    (most, count), *_ = told.most_common()
    if count < len(kept):
        notes.append(
            f"{len(kept) - count:,} of {len(kept):,} explored lists were left out of estimates: drawn "
            f"otherwise than most, at temperature {most.temperature:g} from the top {most.top}"
        )
    return Alike(kept[[log.origins[n].drawn == most for n in kept.tolist()]], most, tuple(notes))


def drawable(explored: Explored, scenes: list[Scene]) -> Bool:
    """Lists that can be drawn from their scenes: of that length, by picks that may follow each other. [N]"""
    found = np.zeros(len(explored), dtype=bool)
    for n, scene in enumerate(scenes):
        seen = explored.picks[n, : int(explored.logs.consumed[n])]
        picks = columns_of(scene, seen)
        if scene.length != explored.logs.shown[n] or (picks < 0).any():
            continue
        found[n] = bool(followers(scene, picks)[np.arange(len(picks)), picks].all())
    return found
