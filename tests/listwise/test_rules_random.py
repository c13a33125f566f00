"""Hard rules hold in every list of every generator: random requests, read by the independent checker."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from rule_cases import case

from relaygr.core.clock import ManualClock
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.generators.demotion import Demotion
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.generators.pointwise import Pointwise
from relaygr.listwise.generators.reweighted import Reweighted
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.scene import Scene

GENERATORS: tuple[Generator, ...] = (
    Mmr(),
    Dpp(),
    Dpp(strength=0.5, window=4),
    Ssd(),
    Demotion(),
    PlackettLuce(draws=2),
    Reweighted("reversed", lambda natural: -natural[0]),
)
FALLBACK = Pointwise()
BUDGET = Budget(ManualClock())


def check_request(seed: int, generators: tuple[Generator, ...]) -> Counter[str]:
    """Lists of the fallback and of `generators` for one request, whole and narrowed to its top."""
    big = case(
        seed, candidates=24 + seed % 3 * 8, length=6 + seed % 4, rules=5, shown=8, vectors=8, authors=9
    )
    tally: Counter[str] = Counter()
    try:
        walk = big.rules.open(big.pool, big.value, big.length, big.shown)
    except InfeasibleError:
        return Counter(infeasible=1)
    ask = SlateAsk(request_id=str(seed), length=big.length, rules=big.rules, shown=big.shown)
    scene = Scene(ask, big.pool, big.value, walk, np.arange(len(big.pool)))
    scene = scene.with_fallback(FALLBACK.propose(scene, BUDGET)[0].picks)
    narrow = scene.narrow(scene.top(16))
    for where in (scene, narrow):
        for generator in (FALLBACK, *generators):
            lists = generator.propose(where, BUDGET)
            assert lists, (seed, generator.name)
            for made in lists:
                picks = where.columns[made.picks].astype(np.int32)
                wrong = big.rules.violations(big.pool, picks, walk.length, big.shown, walk.relaxations)
                assert not wrong, (seed, generator.name, wrong)
                tally[generator.name] += 1
                tally["rescued"] += not made.exact
    tally["relaxed"] += bool(walk.relaxations)
    tally["budget"] += bool(walk.budget_hits + narrow.walk.budget_hits)
    return tally


def test_hard_rules_hold_in_two_thousand_requests() -> None:
    """The fallback in all of them, one other generator in each by turns."""
    tally: Counter[str] = Counter()
    for seed in range(2000):
        tally += check_request(seed, (GENERATORS[seed % len(GENERATORS)],))
    assert tally["pointwise"] >= 3800
    assert all(tally[generator.name] >= 500 for generator in GENERATORS)
    assert tally["relaxed"] >= 200  # and requests that needed relaxation are among them
    assert tally["rescued"] >= 5


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shard", range(20))
def test_hard_rules_hold_in_a_hundred_thousand_requests(shard: int) -> None:
    """Every generator in every request."""
    tally: Counter[str] = Counter()
    for seed in range(10_000 + shard * 5000, 15_000 + shard * 5000):
        tally += check_request(seed, GENERATORS)
    print(f"shard {shard}: {dict(tally)}")
    assert tally["pointwise"] >= 9000
