"""A proof by counting that lists never meet a dead end, whatever is picked: most requests have one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaygr.listwise.arrays import Bool
from relaygr.listwise.rules.automaton import Automaton
from relaygr.listwise.rules.places import PinnedItem, SlotClass
from relaygr.listwise.rules.quota import MinimumQuota


def never_stuck(rules: Sequence[Automaton], eligible: Bool, length: int) -> bool:
    """Whether more candidates are there than the picks and all caps together can exclude at one time.

    Counted for all candidates, and again for the class that slots or a minimum quota demand. Two demands
    could meet at one position, and a pinned item may be in the way of others: the search is for those.
    """
    demands = [rule for rule in rules if isinstance(rule, MinimumQuota | SlotClass | PinnedItem)]
    if len(demands) > 1 or any(isinstance(rule, PinnedItem) for rule in demands):
        return False

    def spare(within: Bool, picks: int) -> bool:
        crowd = sum(rule.crowd(within) for rule in rules)
        return int(np.count_nonzero(within)) > picks + crowd

    if not demands:
        return spare(eligible, length - 1)
    demand = demands[0]
    if isinstance(demand, MinimumQuota):
        # As long as it forces the class, fewer than its count of the class have been picked.
        need = demand.count - demand.start
        if need > demand.within:
            return False
        return spare(eligible, length - 1) and spare(eligible & demand.inside, need - 1)
    assert isinstance(demand, SlotClass)
    slots = int(demand.at.sum())
    inside, outside = eligible & demand.inside, eligible & ~demand.inside
    if not demand.exclusive:
        return spare(eligible, length - 1) and spare(inside, length - 1)
    return (slots == 0 or spare(inside, slots - 1)) and (
        slots == length or spare(outside, length - slots - 1)
    )
