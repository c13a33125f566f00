"""Exploration: who explores, what is drawn and with which propensity, and what is never explored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from slate_cases import VALUE, list_model, random_pool

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Int32
from relaygr.listwise.explore import Explorer
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.masks import NoRules, Rules
from relaygr.listwise.pool import Pool
from relaygr.listwise.proposal import Budget
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.result import Exploration, Reason, SlateResult
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slates import Slates
from relaygr.listwise.trust import Trust

POOL = random_pool(np.random.default_rng(3), 60)
RULES = RuleSet(
    parse_rules(
        {
            "id": "small",
            "rules": [
                {"kind": "gap", "name": "authors", "attribute": "author", "distance": 3},
                {"kind": "cap", "name": "topics", "attribute": "topic", "most": 2, "window": 5},
            ],
        }
    )
)
EVERY = Explorer(share=1.0, temperature=0.2, seed=4)


def slates(explorer: Explorer | None = EVERY, **more: Any) -> Slates:
    return Slates(VALUE, list_model(), explorer=explorer, **more)


def ask(key: str = "shop ann r1", rules: Rules | None = None, **more: Any) -> SlateAsk:
    return SlateAsk(request_id="r1", length=6, explore=key, rules=rules or NoRules(), **more)


def exact(serving: Slates, one: SlateAsk, pool: Pool, picks: Int32) -> float:
    """The log-propensity of a served list, from the region's scene."""
    region = Trust().region(serving.scene(one, pool))
    assert serving.explorer is not None
    inside = [region.scene.columns.tolist().index(pick) for pick in picks.tolist()]
    model = PlackettLuce(temperature=serving.explorer.temperature)
    return model.log_propensity(region.scene, np.array(inside, dtype=np.int32))


@pytest.mark.parametrize("rules", [None, RULES])
def test_a_drawn_list_has_the_exact_propensity(rules: Rules | None) -> None:
    serving = slates()
    found = set()
    for number in range(30):
        one = ask(f"shop ann {number}", rules)
        result = serving.serve(one, POOL)
        assert result.explored
        assert (result.generator, result.fallback_reason) == ("explore(0.2)", None)
        assert result.log_propensity == pytest.approx(exact(serving, one, POOL, result.picks), abs=1e-9)
        assert sum(result.log_propensities) == pytest.approx(result.log_propensity)
        assert len(result.log_propensities) == 6
        assert one.rules.violations(POOL, result.picks, 6, None, ()) == ()
        order = np.argsort(-VALUE(POOL.natural()), kind="stable").tolist()
        ranks = [order.index(pick) for pick in result.picks.tolist()]
        assert max(ranks) < 30
        assert sum(rank < 12 for rank in ranks) >= 3
        assert result.utility is not None
        assert result.explanation is not None
        found.add(tuple(result.picks.tolist()))
    assert len(found) == 30


def test_who_explores_and_what_is_drawn_follow_from_seed_and_key() -> None:
    lists = {}
    for seed in (0, 1):
        first, second = (slates(Explorer(share=0.5, seed=seed)) for _ in range(2))
        served = [[one.serve(ask(f"{n}"), POOL) for n in range(60)] for one in (first, second)]
        assert [one.items.tolist() for one in served[0]] == [one.items.tolist() for one in served[1]]
        # The generators' seed, the id of the request, is another one.
        other = first.serve(replace(ask("3"), request_id="r2"), POOL)
        assert other.explored == served[0][3].explored
        lists[seed] = [(one.explored, one.items.tolist()) for one in served[0]]
    assert lists[0] != lists[1]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_the_share_is_kept(share: float) -> None:
    """Within five standard deviations of the binomial distribution, for every seed."""
    n = 20_000
    for seed in range(3):
        explorer = Explorer(share=share, seed=seed)
        taken = sum(explorer.takes(f"shop user-{at} request-{at}") for at in range(n))
        assert abs(taken - share * n) < 5 * np.sqrt(n * share * (1 - share))
    assert not Explorer(share=0.0).takes("r")


@pytest.mark.parametrize(
    "never",
    [
        {"key": ""},
        {"mode": Mode.OFF},
        {"mode": Mode.SHADOW},
        {"unrestricted": True},
    ],
)
def test_what_is_never_explored(never: dict[str, Any]) -> None:
    result = slates().serve(ask(**never), POOL)
    plain = slates(None).serve(ask(**never), POOL)
    assert not result.explored
    assert result.exploration is None
    assert result.log_propensities == ()
    assert result.items.tolist() == plain.items.tolist()


class Rescued(Explorer):
    """Every draw met a dead end."""

    def draw(self, scene: Any, budget: Any) -> None:
        return None


class Broken(Explorer):
    def draw(self, scene: Any, budget: Any) -> None:
        raise ValueError("broken")


@pytest.mark.parametrize(("explorer", "what"), [(Rescued, Exploration.RESCUED), (Broken, Exploration.ERROR)])
def test_a_draw_that_fails_leaves_the_chosen_list(explorer: type[Explorer], what: Exploration) -> None:
    serving = slates(explorer(share=1.0))
    result, plain = serving.serve(ask(), POOL), slates(None).serve(ask(), POOL)
    assert (result.exploration, result.explored, result.log_propensity) == (what, False, None)
    assert result.items.tolist() == plain.items.tolist()
    assert (result.generator, result.fallback_reason) == (plain.generator, None)
    assert serving.counts.snapshot()["exploration", what.value] == 1


def test_a_rescued_draw_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the exact search ran out of nodes, a draw may meet a dead end: it has no propensity."""
    scene, free = slates().scene(ask(), POOL), Budget(ManualClock())
    made = PlackettLuce().propose(scene, free)
    lost = [replace(one, log_propensity=None, exact=False, steps=None) for one in made]
    monkeypatch.setattr(PlackettLuce, "propose", lambda *_: lost)
    assert EVERY.draw(scene, free) is None
    monkeypatch.setattr(PlackettLuce, "propose", lambda *_: [])
    assert EVERY.draw(scene, free) is None


def test_a_late_draw_ends_in_the_pointwise_list() -> None:
    class Ticking(ManualClock):
        def now_s(self) -> float:
            self.advance(0.004)
            return super().now_s()

    result = Slates(VALUE, list_model(), explorer=EVERY, clock=Ticking()).serve(ask(budget_ms=10.0), POOL)
    assert result.exploration is Exploration.DEADLINE
    assert result.fallback_reason is Reason.DEADLINE
    assert result.log_propensity is None


def test_drawn_lists_are_as_frequent_as_their_propensities() -> None:
    """First picks of 3,000 requests against their exact distribution: chi-square below its 1e-6 quantile."""
    serving, n = slates(), 3_000
    firsts = np.zeros(len(POOL))
    for number in range(n):
        firsts[serving.serve(replace(ask(f"{number}"), length=1), POOL).picks[0]] += 1
    one = replace(ask(), length=1)
    expected = np.array([n * np.exp(_of(serving, one, pick)) for pick in range(len(POOL))])
    assert expected.sum() == pytest.approx(n)
    likely = expected >= 5
    squares = ((firsts - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    assert squares < freedom + 5 * np.sqrt(2 * freedom) + 12


def _of(serving: Slates, one: SlateAsk, pick: int) -> float:
    region = Trust().region(serving.scene(one, POOL))
    if pick not in region.scene.columns:
        return -np.inf
    return exact(serving, one, POOL, np.array([pick], dtype=np.int32))


def test_batches_explore_as_single_requests() -> None:
    asks: Sequence[SlateAsk] = [ask(f"{n}") for n in range(8)]
    serving = slates(Explorer(share=0.5))
    batch = serving.serve_batch(asks, [POOL] * 8)
    assert all(isinstance(one, SlateResult) for one in batch)
    singles = [slates(Explorer(share=0.5)).serve(one, POOL) for one in asks]
    assert [one.items.tolist() for one in batch if isinstance(one, SlateResult)] == [
        one.items.tolist() for one in singles
    ]


@pytest.mark.parametrize("change", [{"share": 1.1}, {"share": -0.1}, {"share": 0.1, "temperature": 0.0}])
def test_wrong_settings_are_named(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"explorer\."):
        Explorer(**change)  # type: ignore[arg-type]
