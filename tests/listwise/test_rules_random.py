"""Hard rules hold in every list of every generator: random requests, read by the independent checker."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from rule_cases import case
from slate_cases import trained

from relaygr.core.clock import ManualClock
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.generators.beam import Beam, BeamWithGreedy
from relaygr.listwise.generators.demotion import Demotion
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.generators.pointwise import Pointwise
from relaygr.listwise.generators.reweighted import Reweighted
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import Group, HeadSpec, StepConfig
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction

VALUE = ValueFunction(
    ValueDocument(id="like", terms=(Term(weight=1.0, factors=(Factor(head="like"),)),)), (Head("like"),)
)
STEP = trained(
    StepConfig(
        heads=(HeadSpec(name="like"),),
        groups=(
            Group(name="similarity", features=("similarity:max",)),
            Group(name="author", features=("count:author", "recency:author")),
        ),
        watch_head="like",
        positions=5,
    )
)
MODEL = ListModel(STEP, VALUE)
DPPS = (Dpp(), Dpp(strength=0.5, window=4))
GENERATORS: tuple[Generator, ...] = (
    Mmr(),
    *DPPS,
    Ssd(),
    Demotion(),
    PlackettLuce(draws=2),
    Reweighted("reversed", lambda natural: -natural[0]),
    Beam(MODEL, 1),
    Beam(MODEL, 4),
)
# Candidates, length, authors, and what search looks at.
SERVED = ((200, 10, 40, 30), (120, 12, 20, 30), (60, 8, 10, 30), (200, 20, 12, 60))
FALLBACK = Pointwise()
BUDGET = Budget(ManualClock())


def check_request(seed: int, generators: tuple[Generator, ...], **changes: Any) -> Counter[str]:
    """Lists for one request: the fallback's over all candidates, the others' over all or, if odd, the top."""
    count, length, authors, top = 21 + seed % 3 * 6, 5 + seed % 4, 8, 16
    if seed % 9 == 8:  # of the sizes that servers see
        count, length, authors, top = SERVED[seed // 9 % len(SERVED)]
    settings = {"rules": 3, "shown": 6, "vectors": 8, "authors": authors, **changes}
    big = case(seed, candidates=count, length=length, **settings)
    try:
        walk = big.rules.open(big.pool, big.value, big.length, big.shown)
    except InfeasibleError:
        return Counter(infeasible=1)
    ask = SlateAsk(request_id=str(seed), length=big.length, rules=big.rules, shown=big.shown)
    scene = Scene(ask, big.pool, big.value, walk, np.arange(len(big.pool)))
    fallback = FALLBACK.propose(scene, BUDGET)
    scene = scene.with_fallback(fallback[0].picks)
    inner = scene.narrow(scene.top(top)) if seed % 2 else scene
    made = [(scene, FALLBACK.name, fallback)]
    made += [(inner, each.name, each.propose(inner, BUDGET)) for each in generators]
    tally: Counter[str] = Counter(relaxed=int(bool(walk.relaxations)))
    for where, name, lists in made:
        assert lists, (seed, name)
        for one in lists:
            picks = where.columns[one.picks].astype(np.int32)
            wrong = big.rules.violations(big.pool, picks, walk.length, big.shown, walk.relaxations)
            assert not wrong, (seed, name, wrong)
            tally[name] += 1
            tally["rescued"] += not one.exact
    tally["budget"] += bool(walk.budget_hits + inner.walk.budget_hits)
    tally["served"] += count > 33
    return tally


def test_hard_rules_hold_in_two_thousand_requests() -> None:
    """The fallback in all of them, one other generator in each by turns."""
    tally: Counter[str] = Counter()
    for seed in range(2000):
        tally += check_request(seed, (GENERATORS[seed // 2 % len(GENERATORS)],))
    assert tally["pointwise"] >= 1900
    assert all(tally[generator.name] >= 200 for generator in GENERATORS)
    assert tally["relaxed"] >= 200  # and requests that needed relaxation are among them
    assert tally["rescued"] >= 5
    assert tally["served"] >= 200


@pytest.mark.parametrize("twins", [0.9, 1.0])
def test_hard_rules_hold_among_items_of_equal_vectors(twins: float) -> None:
    """Nothing that is left adds a direction to the picks, in most requests."""
    tally: Counter[str] = Counter()
    for seed in range(1000):
        few = (GENERATORS[seed // 2 % len(GENERATORS)], DPPS[seed // 2 % 2])
        tally += check_request(20_000 + seed, few, twins=twins)
    assert all(tally[generator.name] >= 100 for generator in GENERATORS)


def test_hard_rules_hold_among_items_without_vectors() -> None:
    """Items are as similar as their attributes say, and many have the same ones."""
    plain = tuple(each for each in GENERATORS if not isinstance(each, Beam | Ssd))
    tally: Counter[str] = Counter()
    for seed in range(700):
        few = (plain[seed // 2 % len(plain)], DPPS[seed // 2 % 2])
        tally += check_request(30_000 + seed, few, vectors=0)
    assert all(tally[generator.name] >= 80 for generator in plain)


def test_twins_change_nothing_but_vectors() -> None:
    for seed in range(20):
        one, other = (case(seed, candidates=24, length=6, vectors=8, twins=twins) for twins in (0.0, 0.7))
        assert one.document == other.document
        assert one.pool.ids.tolist() == other.pool.ids.tolist()
        assert one.pool.outputs.tolist() == other.pool.outputs.tolist()
        assert one.pool.vectors is not None
        assert other.pool.vectors is not None
        assert len(np.unique(other.pool.vectors, axis=0)) < len(np.unique(one.pool.vectors, axis=0)) == 24


def test_greedy_and_beam_by_one_search_are_those_of_two() -> None:
    """Dead ends included."""
    greedy, beam = Beam(MODEL, 1), Beam(MODEL, 4)
    both, rescued = BeamWithGreedy(greedy, beam), 0
    for seed in range(300):
        one = case(seed, candidates=24, length=6, rules=3, shown=6, vectors=8, authors=5)
        try:
            walk = one.rules.open(one.pool, one.value, one.length, one.shown)
        except InfeasibleError:
            continue
        ask = SlateAsk(request_id=str(seed), length=one.length, rules=one.rules, shown=one.shown)
        scene = Scene(ask, one.pool, one.value, walk, np.arange(len(one.pool)))
        apart = [*greedy.propose(scene, BUDGET), *beam.propose(scene, BUDGET)]
        found = both.propose(scene, BUDGET)
        assert [each.generator for each in found] == ["greedy", "beam4"], seed
        assert [each.picks.tolist() for each in found] == [each.picks.tolist() for each in apart], seed
        rescued += not all(each.exact for each in found)
    assert rescued >= 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shard", range(100))
def test_hard_rules_hold_in_a_hundred_thousand_requests(shard: int) -> None:
    """Every generator in every request."""
    tally: Counter[str] = Counter()
    for seed in range(10_000 + shard * 1000, 11_000 + shard * 1000):
        tally += check_request(seed, GENERATORS)
    print(f"shard {shard}: {dict(tally)}")
    assert tally["pointwise"] >= 950
