"""Plackett-Luce: propensities and frequencies against enumeration of all lists, with rules and without."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import exp, log

import numpy as np
import pytest
from rule_cases import case, items

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.generators.relevance import scale_of
from relaygr.listwise.masks import NoRules
from relaygr.listwise.pool import Head, Pool, Shown
from relaygr.listwise.proposal import Budget
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.rules import reference
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.scene import Scene

BUDGET = Budget(ManualClock())
RULES = RuleSet(
    parse_rules(
        {
            "id": "small",
            "rules": [
                {"kind": "gap", "name": "authors", "attribute": "author", "distance": 3},
                {"kind": "minimum", "name": "news", "attribute": "class", "values": [1], "count": 2},
            ],
        }
    )
)


def scene(
    rules: RuleSet | None,
    length: int = 3,
    request: str = "r",
    value: float = 1.0,
    shown: Shown | None = None,
) -> Scene:
    """Five candidates, two of one author, three of class 1: with the rules some prefixes have no way on."""
    worth = value * np.array([0.9, 0.7, 0.6, 0.4, 0.1])
    pool = Pool(
        ids=np.arange(10, 15, dtype=np.int64),
        heads=(Head("like"),),
        outputs=worth[:, None].astype(np.float32),
        attributes={"author": np.array([1, 2, 2, 3, 1]), "class": np.array([0, 1, 1, 0, 1])},
    )
    ask = SlateAsk(request_id=request, length=length, rules=rules or NoRules(), shown=shown)
    return Scene(ask, pool, worth, ask.rules.open(pool, worth, length, shown), np.arange(5))


def enumerate_lists(
    here: Scene, right: list[tuple[int, ...]], generator: PlackettLuce
) -> dict[tuple[int, ...], float]:
    """log-propensity of every list: each pick is a softmax over what some right list goes on with."""
    rel = scale_of(here, generator.relevance)(here.value) / generator.temperature
    found = {}
    for picks in right:
        total = 0.0
        for t, item in enumerate(picks):
            options = {each[t] for each in right if each[:t] == picks[:t]}
            total += rel[item] - log(sum(exp(rel[other]) for other in options))
        found[picks] = total
    return found


def right_lists(here: Scene, rules: RuleSet | None) -> list[tuple[int, ...]]:
    if rules is None:
        return list(permutations(range(len(here)), here.length))
    pool = items(here.pool.ids, here.pool.attributes)
    return reference.lists(rules.document, [], pool, here.length)


@pytest.mark.parametrize("rules", [None, RULES], ids=["free", "rules"])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_propensities_are_those_of_enumeration_and_sum_to_one(
    rules: RuleSet | None, temperature: float
) -> None:
    here = scene(rules)
    generator = PlackettLuce(temperature=temperature, relevance="raw")
    wanted = enumerate_lists(here, right_lists(here, rules), generator)
    assert sum(exp(each) for each in wanted.values()) == pytest.approx(1.0, abs=1e-12)
    for picks in permutations(range(len(here)), here.length):
        got = generator.log_propensity(here, np.array(picks, dtype=np.int32))
        assert got == pytest.approx(wanted.get(picks, float("-inf")), abs=1e-9), picks


@pytest.mark.parametrize("rules", [None, RULES], ids=["free", "rules"])
def test_lists_are_drawn_as_often_as_their_propensities_say(rules: RuleSet | None) -> None:
    here, draws = scene(rules), 1000
    generator = PlackettLuce(temperature=0.5, draws=draws, relevance="raw")
    wanted = enumerate_lists(here, right_lists(here, rules), generator)
    drawn: list[tuple[int, ...]] = []
    for request in range(8):
        for made in generator.propose(scene(rules, request=f"q{request}"), BUDGET):
            drawn.append(tuple(made.picks.tolist()))
            assert made.log_propensity == pytest.approx(wanted[drawn[-1]], abs=1e-9)
            assert made.exact
    freedom = len(wanted) - 1
    assert statistic(drawn, wanted) < freedom + 5 * (2 * freedom) ** 0.5


def test_one_noise_for_the_whole_list_would_have_other_propensities() -> None:
    """Why noise is fresh at each step: the author shown last is barred at first, and with one Gumbel key per
    item comes back with luck that it was not allowed to use."""
    before = Shown(ids=np.array([1]), attributes={"author": np.array([1]), "class": np.array([0])})
    gap = {"kind": "gap", "name": "authors", "attribute": "author", "distance": 2}
    rules = RuleSet(parse_rules({"id": "late", "rules": [gap]}))
    here = scene(rules, length=2, shown=before)
    generator = PlackettLuce(temperature=0.2, relevance="raw")
    pool = items(here.pool.ids, here.pool.attributes)
    right = reference.lists(rules.document, items(before.ids, before.attributes), pool, 2)
    wanted = enumerate_lists(here, right, generator)
    drawn = [tuple(made.picks.tolist()) for made in replace(generator, draws=1000).propose(here, BUDGET)]
    rng = np.random.default_rng(0)
    keyed = [keyed_list(here, here.value / 0.2 + rng.gumbel(size=len(here))) for _ in range(4000)]
    freedom = len(wanted) - 1
    assert statistic(drawn, wanted) < freedom + 5 * (2 * freedom) ** 0.5
    assert statistic(keyed, wanted) > freedom + 20 * (2 * freedom) ** 0.5


def keyed_list(here: Scene, keys: np.ndarray) -> tuple[int, ...]:
    """The list in the order of the keys, as far as the rules allow."""
    marks, picks = here.walk.start(), list[int]()
    for t in range(here.length):
        mask = here.walk.feasible(marks, t)[0]
        picks.append(int(np.where(mask, keys, -np.inf).argmax()))
        marks = here.walk.step(marks, t, np.zeros(1, dtype=np.int64), np.array(picks[-1:]))
    return tuple(picks)


def statistic(drawn: list[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """Pearson's: if the propensities are right, its mean is the freedom and its variance twice that."""
    expected = {picks: len(drawn) * exp(each) for picks, each in wanted.items()}
    return sum((drawn.count(picks) - each) ** 2 / each for picks, each in expected.items())


def test_the_same_request_draws_the_same_lists_and_another_draws_others() -> None:
    generator = PlackettLuce(temperature=1.0, draws=8)

    def drawn(request: str) -> list[tuple[list[int], float | None]]:
        made = generator.propose(scene(RULES, request=request), BUDGET)
        return [(one.picks.tolist(), one.log_propensity) for one in made]

    assert drawn("one") == drawn("one")
    assert drawn("one") != drawn("two")


def test_lists_drawn_at_once_have_the_propensities_of_single_ones() -> None:
    """Each of many has the propensity that it would have alone."""
    big = case(
        3, candidates=30, length=8, rules=4, authors=6, kinds=("gap", "cap", "slot", "minimum"), soft=0.0
    )
    ask = SlateAsk(request_id="r", length=big.length, rules=big.rules, shown=big.shown)
    walk = big.rules.open(big.pool, big.value, big.length, big.shown)
    here = Scene(ask, big.pool, big.value, walk, np.arange(len(big.pool)))
    generator = PlackettLuce(temperature=0.3, draws=20)
    for made in generator.propose(here, BUDGET):
        assert made.log_propensity == pytest.approx(generator.log_propensity(here, made.picks), abs=1e-12)


def test_extreme_temperatures_stay_finite() -> None:
    cold = PlackettLuce(temperature=1e-6, relevance="raw")
    (made,) = cold.propose(scene(None, value=1e3), BUDGET)
    assert made.picks.tolist() == [0, 1, 2]
    assert made.log_propensity == 0.0
    hot = PlackettLuce(temperature=1e6)
    (made,) = hot.propose(scene(None), BUDGET)
    assert made.log_propensity == pytest.approx(-log(5 * 4 * 3), abs=1e-4)


def test_a_list_rescued_at_a_dead_end_has_no_propensity() -> None:
    """Without nodes for the search some draws meet a dead end; what is returned still satisfies the rules."""
    rescued = 0
    for seed in range(40):
        small = case(
            seed, candidates=21, length=8, rules=5, authors=4, kinds=("gap", "cap", "slot"), soft=0.0
        )
        poor = RuleSet(
            parse_rules({"id": "poor", "lookahead_nodes": 0, "rules": []}).extended(small.document.rules)
        )
        try:
            walk = poor.open(small.pool, small.value, small.length, small.shown)
        except InfeasibleError:
            continue
        ask = SlateAsk(request_id=str(seed), length=small.length, rules=poor, shown=small.shown)
        here = Scene(ask, small.pool, small.value, walk, np.arange(len(small.pool)))
        for made in PlackettLuce(temperature=5.0, draws=10).propose(here, BUDGET):
            assert (made.log_propensity is None) == (not made.exact)
            rescued += not made.exact
            assert not poor.violations(small.pool, made.picks, walk.length, small.shown, walk.relaxations)
    assert rescued


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"plackett_luce\.temperature: 0 must be in \(0, 1000000\]"):
        PlackettLuce(temperature=0)
    with pytest.raises(ConfigError, match=r"plackett_luce\.draws: 0 must be in \[1, 1000\]"):
        PlackettLuce(draws=0)
