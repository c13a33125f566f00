"""Each automaton against the independent checker, one rule at a time; many lists against each alone."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import KINDS, Case, case

from relaygr.listwise.rules.automaton import Automaton
from relaygr.listwise.rules.checker import check
from relaygr.listwise.rules.compile import compile_rule, pins_of
from relaygr.listwise.rules.document import Minimum
from relaygr.listwise.rules.ground import Ground, open_ground
from relaygr.listwise.rules.relax import open_walk

ONE = np.zeros(1, dtype=np.int64)
MASKED = tuple(kind for kind in KINDS if kind not in ("minimum", "eligible"))


def opened(seed: int, kind: str, **sizes: int) -> tuple[Case, Ground, Automaton | None]:
    small = case(seed, candidates=sizes.get("candidates", 8), length=6, rules=1, kinds=(kind,), soft=0.0)
    length = min(small.length, len(small.pool))
    ground = open_ground(small.document, small.pool, length, small.shown)
    rule = small.document.rules[0]
    return small, ground, compile_rule(rule, ground, pins_of([rule], ground))


def breaks(small: Case, picks: list[int]) -> bool:
    """Whether the last pick breaks the rule."""
    everything = small.items()
    found = check(small.document, small.before(), [everything[pick] for pick in picks])
    return any(each.rule == "r0" and each.position == len(picks) - 1 for each in found)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32), st.sampled_from(MASKED))
def test_a_mask_forbids_exactly_what_the_checker_finds_wrong(seed: int, kind: str) -> None:
    small, ground, automaton = opened(seed, kind)
    rng = np.random.default_rng(seed)
    picks: list[int] = []
    state = None if automaton is None else automaton.init()
    for t in range(ground.length):
        free = [c for c in range(len(small.pool)) if ground.eligible[c] and c not in picks]
        if not free:
            return
        for candidate in free:
            allowed = automaton is None or bool(automaton.mask(state, t)[0, candidate])
            assert allowed != breaks(small, [*picks, candidate]), (t, picks, candidate)
        # Not always an allowed one: relaxed and priced rules see such lists as well.
        picks.append(int(rng.choice(free)))
        if automaton is not None:
            state = automaton.step(state, t, ONE, np.array(picks[-1:]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32), st.sampled_from([kind for kind in KINDS if kind != "eligible"]))
def test_counting_ahead_never_rules_out_a_pick_with_which_the_list_can_be_completed(
    seed: int, kind: str
) -> None:
    small, ground, automaton = opened(seed, kind, candidates=6)
    if automaton is None:
        return
    eligible = np.flatnonzero(ground.eligible).tolist()
    if len(eligible) < ground.length:
        return
    everything = small.items()
    right = [
        picks
        for picks in permutations(eligible, ground.length)
        if not check(small.document, small.before(), [everything[pick] for pick in picks])
    ]
    for picks in right[:: max(len(right) // 20, 1)]:
        state, free = automaton.init(), ground.eligible[None].copy()
        for t, item in enumerate(picks):
            assert automaton.mask(state, t)[0, item]
            ahead = automaton.can_finish(state, t, free)
            assert ahead is None or ahead[0, item], (picks, t)
            state = automaton.step(state, t, ONE, np.array([item]))
            free[0, item] = False
        assert automaton.final_ok(state)[0]
    if automaton.lack(ground.eligible):
        assert not right


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32), st.sampled_from([kind for kind in KINDS if kind != "eligible"]))
def test_the_search_sees_the_same_rule_as_the_masks(seed: int, kind: str) -> None:
    """`child` of a key admits what the mask admits, and leads to the key of the next state."""
    small, ground, automaton = opened(seed, kind)
    if automaton is None:
        return
    labels, rng = automaton.labels().tolist(), np.random.default_rng(seed)
    state, key, picks = automaton.init(), automaton.key(automaton.init(), 0, 0), list[int]()
    for t in range(ground.length):
        free = [c for c in range(len(small.pool)) if ground.eligible[c] and c not in picks]
        mask = automaton.mask(state, t)[0]
        if kind == "minimum":  # a key also refuses what leaves too few positions
            ahead = automaton.can_finish(state, t, np.ones((1, len(mask)), dtype=bool))
            for candidate in free:
                if automaton.child(key, t, labels[candidate]) is None:
                    assert not mask[candidate] or (ahead is not None and not ahead[0, candidate])
        else:
            for candidate in free:
                child = automaton.child(key, t, labels[candidate])
                assert (child is not None) == bool(mask[candidate]), (t, picks, candidate)
        good = [c for c in free if automaton.child(key, t, labels[c]) is not None]
        if not good:
            return
        picks.append(int(rng.choice(good)))
        key = automaton.child(key, t, labels[picks[-1]])
        state = automaton.step(state, t, ONE, np.array(picks[-1:]))
        again = automaton.key(state, 0, t + 1)
        if kind == "pairs":
            there = set(labels)  # values that no candidate holds make no difference
            assert {label for label in key if label in there} == {label for label in again if label >= 0}
        elif kind != "minimum" or t + 1 < automaton.within:
            assert key == again
    assert automaton.done(key) == bool(automaton.final_ok(state)[0])


@pytest.mark.parametrize("seed", range(12))
def test_many_lists_at_once_are_the_same_as_each_alone(seed: int) -> None:
    big = case(seed, candidates=30, length=8, rules=6, authors=6, kinds=KINDS[:7])
    walk = open_walk(big.document, big.pool, big.length, big.shown, allow_short=True)
    rng = np.random.default_rng(seed)
    many, singles = walk.start(), [walk.start()]
    for t in range(walk.length):
        masks, exact = walk.allowed(many, t), walk.feasible(many, t)
        for beam, single in enumerate(singles):
            assert (walk.allowed(single, t)[0] == masks[beam]).all()
            assert (walk.feasible(single, t)[0] == exact[beam]).all()
            if walk.priced:
                assert (walk.price(single, t)[0] == walk.price(many, t)[beam]).all()
                for item in np.flatnonzero(masks[beam])[:3].tolist():
                    effects = walk.effects(many, t, beam, item)
                    assert sum(each.price for each in effects) == pytest.approx(
                        walk.price(many, t)[beam, item]
                    )
        parents = rng.integers(0, len(singles), 5)
        parents = parents[masks[parents].any(axis=1)]
        if not len(parents):
            return
        items = np.array([int(rng.choice(np.flatnonzero(masks[parent]))) for parent in parents])
        before = [array.copy() for array in many.rules]
        many_next = walk.step(many, t, parents, items)
        assert all((one == two).all() for one, two in zip(before, many.rules, strict=True))  # unchanged
        singles = [
            walk.step(singles[parent], t, ONE, np.array([item]))
            for parent, item in zip(parents, items, strict=True)
        ]
        many = many_next


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_a_minimum_is_met_by_every_list_of_its_masks(seed: int) -> None:
    small, ground, automaton = opened(seed, "minimum")
    rule = small.document.rules[0]
    assert isinstance(rule, Minimum)
    if automaton is None or automaton.lack(ground.eligible):
        return
    rng = np.random.default_rng(seed)
    state, free = automaton.init(), ground.eligible[None].copy()
    picks: list[int] = []
    for t in range(min(ground.length, int(ground.eligible.sum()))):
        mask = automaton.mask(state, t) & free
        ahead = automaton.can_finish(state, t, free)
        options = np.flatnonzero((mask if ahead is None else mask & ahead)[0])
        assert len(options), (t, picks)
        picks.append(int(rng.choice(options)))
        free[0, picks[-1]] = False
        state = automaton.step(state, t, ONE, np.array(picks[-1:]))
    if len(picks) == ground.length:
        everything = small.items()
        assert not check(small.document, small.before(), [everything[pick] for pick in picks])
        assert automaton.final_ok(state)[0]
