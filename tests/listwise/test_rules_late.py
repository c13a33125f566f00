"""When the time is over: rules that the list in hand keeps stay, reasons say so, lengths are found soon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rule_cases import pool_of, rules_of

from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.pool import Pool
from relaygr.listwise.rules import relax
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.rules.walk import RuleWalk


def opened(rules: RuleSet, pool: Pool, length: int, **more: Any) -> RuleWalk:
    return rules.open(pool, np.linspace(1, 0, len(pool)), length, **more)


FRESH = {"kind": "minimum", "name": "fresh", "attribute": "fresh", "values": [1], "count": 2}
ABSENT = {"kind": "pin", "name": "absent", "item": -5, "position": 2}


def test_rules_that_the_list_in_hand_satisfies_stay_when_the_time_is_over() -> None:
    pool, rules = pool_of(40, fresh=np.arange(40) % 2), rules_of(FRESH, ABSENT)
    walk = opened(rules, pool, 5, late=lambda: True)
    assert [one.rule for one in walk.relaxations] == ["absent"]
    assert walk.relaxations[0].position == 2
    assert walk.first is not None
    assert not rules.violations(pool, walk.first, 5, None, walk.relaxations)


def test_the_reason_is_the_time_if_the_time_ended_the_search() -> None:
    """An exact search would find the list; the pointwise one meets the rules halfway."""
    two = [{**FRESH, "name": f"class{at}", "attribute": f"class{at}", "count": 3} for at in range(2)]
    columns = np.zeros((2, 12), dtype=np.int64)
    columns[0, [9, 10, 11]], columns[1, [9, 10, 11]] = 1, 1
    gap = {"kind": "gap", "name": "authors", "attribute": "author", "distance": 2, "relax": "never"}
    author = [*range(9), 50, 50, 50]
    pool = pool_of(12, class0=columns[0], class1=columns[1], author=author)
    rules = rules_of(gap, *two)
    assert not opened(rules, pool, 5).relaxations
    for looks in range(12):
        left = [looks]

        def late(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0

        walk = opened(rules, pool, 5, late=late)
        assert all("found in time" in one.reason for one in walk.relaxations), (looks, walk.relaxations)
        assert all(one.position >= 0 for one in walk.relaxations)


@pytest.mark.parametrize("late", [False, True])
def test_the_length_that_can_hold_is_found_without_trying_each(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    class Counted(RuleWalk):
        def __init__(self, *args: Any, **more: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*args, **more)

    monkeypatch.setattr(relax, "RuleWalk", Counted)
    random = np.random.default_rng(0)
    gap = {"kind": "gap", "distance": 3, "relax": "never"}
    pool = pool_of(300, x=np.arange(300) % 2, **{f"a{at}": random.integers(0, 100, 300) for at in range(4)})
    rules = rules_of(
        *({"kind": "slot", "attribute": "x", "values": [value], "positions": [40]} for value in (0, 1)),
        *({**gap, "attribute": f"a{at}"} for at in range(4)),
    )
    walk = opened(rules, pool, 100, late=lambda: late)
    assert [(one.rule, one.position) for one in walk.relaxations] == [("length", 40)]
    assert ("in time" in walk.relaxations[0].reason) == late
    assert walk.first is not None
    assert not rules.violations(pool, walk.first, 40, None, walk.relaxations)
    assert made < 15


def test_minimums_of_the_whole_list_are_kept_by_shorter_ones_or_it_is_an_error() -> None:
    """Two slots leave four positions; the class fills three of them or, at count 5, no list at all."""
    pool = pool_of(40, fresh=np.arange(40) % 4 == 3, x=np.arange(40) % 2)
    slots = [{"kind": "slot", "attribute": "x", "values": [value], "positions": [4]} for value in (0, 1)]
    for late in (False, True):
        rules = rules_of(*slots, {**FRESH, "count": 3, "relax": "never"})
        walk = opened(rules, pool, 20, late=lambda late=late: late)  # type: ignore[misc]
        assert walk.length == 4
        picks = walk.first if walk.first is not None else walk.rescue(np.zeros(0, np.int32), -np.arange(40.0))
        assert picks is not None
        assert not rules.violations(pool, picks, 4, None, walk.relaxations)
        never = rules_of(*slots, {**FRESH, "count": 5, "relax": "never"})
        with pytest.raises(InfeasibleError, match="found in time" if late else "it needs|satisfies"):
            opened(never, pool, 20, late=lambda late=late: late)  # type: ignore[misc]


def test_a_reason_names_the_first_few_rules() -> None:
    pool = pool_of(30, a=np.arange(30) % 15)
    gap = {"kind": "gap", "attribute": "a", "distance": 2, "relax": "never"}
    slots = [{"kind": "slot", "attribute": "a", "values": [at], "positions": [1]} for at in range(12)]
    walk = opened(rules_of(*slots, *({**gap, "name": f"never{at}"} for at in range(40))), pool, 5)
    (length,) = walk.relaxations
    assert length.rule == "length"
    assert length.reason == "no longer list satisfies r0, r1, r2, r3, r4, r5, r6, r7 and 44 more"
