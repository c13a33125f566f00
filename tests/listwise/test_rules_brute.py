"""Decoding under rules against brute force over all lists of small pools."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import Case, case

from relaygr.listwise.decode import ROOT
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.masks import Marks
from relaygr.listwise.rules import reference
from relaygr.listwise.rules.document import RuleDocument
from relaygr.listwise.rules.relax import first_list
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.rules.walk import RuleWalk

SMALL = {"candidates": 6, "length": 4, "rules": 4}


def check_small(seed: int) -> str:
    """One request against brute force; says what kind of request it was."""
    small = case(seed, **SMALL)
    gone, length, right = reference.relaxed(small.document, small.before(), small.items(), small.length)
    try:
        walk = small.rules.open(small.pool, small.value, small.length, small.shown)
    except InfeasibleError:
        assert length == 0, f"seed {seed}: there are lists of {length}"
        return "infeasible"
    assert walk.length == length, seed
    log = [entry.rule for entry in walk.relaxations]
    assert sorted(name for name in log if name != "length") == sorted(gone), seed
    assert ("length" in log) == (length < small.length), seed
    assert all(entry.reason for entry in walk.relaxations)
    picks = first_list(walk)
    assert picks is not None
    assert tuple(picks.tolist()) in right, seed
    check_log(small, walk, picks)
    if len(right) <= 60:
        check_prefixes(walk, walk.start(), (), right)
    if walk.relaxations:
        return "relaxed"
    return "sure" if walk.sure else "searched"


def check_log(small: Case, walk: RuleWalk, picks: np.ndarray) -> None:
    """The log holds the first position at which the pointwise list breaks a relaxed rule, and it does."""
    assert not small.rules.violations(small.pool, picks, walk.length, small.shown, walk.relaxations)
    for entry in walk.relaxations:
        if entry.rule == "length":
            assert entry.position == walk.length
            continue
        others = [other for other in walk.relaxations if other.rule != entry.rule]
        wrong = small.rules.violations(small.pool, picks, walk.length, small.shown, others)
        assert any(line.startswith(f"{entry.rule}: position {entry.position}") for line in wrong), wrong


def check_prefixes(
    walk: RuleWalk, marks: Marks, prefix: tuple[int, ...], right: list[tuple[int, ...]]
) -> None:
    """At every prefix of every list, exactly what some right list goes on with is feasible."""
    t = len(prefix)
    if t == walk.length:
        return
    wanted = {picks[t] for picks in right if picks[:t] == prefix}
    got = set(np.flatnonzero(walk.feasible(marks, t)[0]).tolist())
    allowed = set(np.flatnonzero(walk.allowed(marks, t)[0]).tolist())
    if any(entry.rule != "length" for entry in walk.relaxations):
        assert got, prefix  # relaxed rules narrow the choice as far as they can
        assert got <= wanted, prefix
    else:
        assert got == wanted, prefix
        assert got <= allowed, prefix
        assert got == allowed or not walk.sure, prefix
    for item in sorted(got):
        child = walk.step(marks, t, ROOT, np.array([item]))
        check_prefixes(walk, child, (*prefix, item), right)


def test_no_dead_end_while_a_list_exists_and_rules_are_relaxed_in_order() -> None:
    kinds = [check_small(seed) for seed in range(120)]
    for kind in ("infeasible", "relaxed", "sure", "searched"):
        assert kinds.count(kind) >= 5, kind  # the cases are of all kinds


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(10))
def test_no_dead_end_in_many_more_small_requests(shard: int) -> None:
    for seed in range(1000 + shard * 600, 1600 + shard * 600):
        check_small(seed)


# Requests in which random picks meet a dead end, so that there is something to rescue.
STUCK = (55, 80, 162, 280, 346, 396, 400, 484, 493, 599, 659, 731, 936, 1042, 1280)


@pytest.mark.parametrize("seed", STUCK)
def test_a_rescue_keeps_the_longest_start_that_can_be_completed(seed: int) -> None:
    small = case(seed, candidates=6, length=5, rules=5, kinds=("gap", "cap", "pairs", "slot", "minimum"))
    walk = small.rules.open(small.pool, small.value, small.length, small.shown)
    marks, prefix = walk.start(), list[int]()
    rng = np.random.default_rng(seed)
    while len(options := np.flatnonzero(walk.allowed(marks, len(prefix))[0])):
        prefix.append(int(rng.choice(options)))
        marks = walk.step(marks, len(prefix) - 1, ROOT, np.array(prefix[-1:]))
        assert len(prefix) < walk.length, "the picks of this seed met no dead end"
    right = reference.relaxed(small.document, small.before(), small.items(), small.length)[2]
    made = walk.rescue(np.array(prefix, dtype=np.int32), small.value)
    assert made is not None
    assert tuple(made.tolist()) in right
    starts = [at for at in range(len(prefix) + 1) if any(each[:at] == tuple(prefix[:at]) for each in right)]
    assert made[: max(starts)].tolist() == prefix[: max(starts)]


@pytest.mark.parametrize("nodes", [0, 3])
def test_without_nodes_the_list_is_still_right_and_the_budget_is_reported(nodes: int) -> None:
    hits = 0
    for seed in range(100):
        small = case(seed, candidates=7, length=5, rules=5)
        poor = RuleSet(RuleDocument(id="poor", rules=small.document.rules, lookahead_nodes=nodes))
        try:
            walk = poor.open(small.pool, small.value, small.length, small.shown)
        except InfeasibleError:
            continue
        hits += walk.budget_hits
        picks = first_list(walk)
        assert picks is not None
        assert not poor.violations(small.pool, picks, walk.length, small.shown, walk.relaxations)
    assert hits
