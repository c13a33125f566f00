"""At whatever moment the time is over: no further step is begun, and what is returned keeps the rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from slate_cases import VALUE, list_model, random_pool, random_shown

from relaygr.core.clock import ManualClock
from relaygr.core.errors import RelayError
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.demotion import Demotion
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.pool import Pool
from relaygr.listwise.proposal import Generator
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.result import Reason, SlateResult, Stage
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.search import StepSearch
from relaygr.listwise.slates import Slates

MODEL = list_model(1, size=1.5)
OTHERS: tuple[Generator, ...] = (Mmr(), Dpp(), Ssd(), Demotion(), PlackettLuce(draws=2))
RULES = RuleSet(
    parse_rules(
        {
            "id": "feed",
            "rules": [
                {"kind": "gap", "name": "authors", "attribute": "author", "distance": 2},
                {"kind": "minimum", "name": "format", "attribute": "format", "values": [1], "count": 1},
            ],
        }
    )
)
TICK_MS = 1.0
LENGTH = 5


class Ticking(ManualClock):
    """Each look at it takes a tick, so that work is counted by the looks before it."""

    def now_s(self) -> float:
        self.advance(TICK_MS / 1e3)
        return super().now_s()

    @property
    def still_s(self) -> float:
        return super().now_s()


def slates_of(clock: ManualClock | None, joint_ms: float | None = None) -> Slates:
    generators: dict[Stage, tuple[Generator, ...]] = {
        Stage.GREEDY: (Beam(MODEL, 1),),
        Stage.BEAM: (Beam(MODEL),),
        Stage.GENERATORS: OTHERS,
    }
    return Slates(VALUE, MODEL, generators=generators, clock=clock, joint_ms=joint_ms)


def pool_of(seed: int) -> Pool:
    return random_pool(np.random.default_rng(seed), 40)


def ask_of(seed: int, **more: object) -> SlateAsk:
    return replace(SlateAsk(request_id=f"r{seed}", length=LENGTH, rules=RULES), **more)  # type: ignore[arg-type]


def said(result: SlateResult) -> tuple[object, ...]:
    """All that does not depend on the time that it took."""
    pool = [(one.generator, one.also, one.picks.tolist(), one.score, one.lower_bound) for one in result.pool]
    return (
        *(result.items.tolist(), result.picks.tolist(), result.generator, result.fallback_reason),
        *(result.utility, result.score, result.lower_bound, result.relaxations, result.context, pool),
        *(result.stage_reached, result.versions, result.error, result.mode),
    )


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[Ticking, list[float]]:
    """A clock, and when each step of the step model was begun."""
    clock, times, score = Ticking(), list[float](), StepSearch.score

    def timed(search: StepSearch, *rest: object) -> object:
        times.append(clock.still_s)
        return score(search, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(StepSearch, "score", timed)
    return clock, times


@pytest.mark.parametrize("joint_ms", [None, 0.0])
def test_no_step_is_begun_after_the_deadline(
    begun: tuple[Ticking, list[float]], joint_ms: float | None
) -> None:
    """Every budget from nothing to all of the work, through each stage."""
    clock, times = begun
    pool = pool_of(0)
    whole = slates_of(None, joint_ms).serve(ask_of(0), pool)
    reached, lateness = set[Stage](), list[float]()
    for budget_ms in range(1, 90):
        times.clear()
        slates = slates_of(clock, joint_ms)
        began_s = clock.still_s + TICK_MS / 1e3  # read by the server
        result = slates.serve(ask_of(0, budget_ms=float(budget_ms)), pool)
        deadline_s = began_s + budget_ms / 1e3
        assert all(time < deadline_s for time in times), budget_ms
        lateness.append((clock.still_s - deadline_s) / (TICK_MS / 1e3))
        assert len(set(result.picks.tolist())) == LENGTH
        assert not RULES.violations(pool, result.picks, LENGTH, None, result.relaxations)
        reached.add(result.stage_reached)
        if result.stage_reached is Stage.EVALUATION:
            assert said(result) == said(whole)
        else:
            assert slates.counts.snapshot()["timeout", ""] == 1
    assert reached == set(Stage)
    assert max(lateness) <= 6  # the check that found it, and the ends of what was being timed


def test_more_time_never_reaches_less() -> None:
    pool, order, before = pool_of(1), list(Stage), 0
    for budget_ms in range(1, 90):
        result = slates_of(Ticking()).serve(ask_of(1, budget_ms=float(budget_ms)), pool)
        assert order.index(result.stage_reached) >= before
        before = order.index(result.stage_reached)
    assert order[before] is Stage.EVALUATION


def test_a_batch_is_single_requests_whatever_its_neighbours_do() -> None:
    """Rules, pages, modes and seeds; one that is infeasible, one with other heads, one whose model fails."""
    slates = slates_of(None)
    asks, pools = list[SlateAsk](), list[Pool]()
    for seed in range(9):
        random = np.random.default_rng(seed)
        shown = random_shown(random, 4) if seed % 3 == 1 else None
        asks.append(ask_of(seed, mode=tuple(Mode)[seed % 3], shown=shown, unrestricted=seed % 2 == 1))
        pools.append(pool_of(seed))
    impossible = RuleSet(
        parse_rules({"id": "none", "rules": [{"kind": "pin", "name": "first", "position": 0, "item": -5}]})
    )
    asks[3:3] = [ask_of(20, rules=impossible, allow_short=False), ask_of(21), ask_of(22, mode=Mode.ON)]
    short = pool_of(20)
    other = replace(pool_of(21), heads=VALUE.heads[:2], outputs=pool_of(21).outputs[:, :2])
    blind = replace(pool_of(22), vectors=None)  # which the step model reads
    pools[3:3] = [short, other, blind]
    found = slates.serve_batch(asks, pools)
    for ask, pool, one in zip(asks, pools, found, strict=True):
        alone = slates_of(None).serve_batch([ask], [pool])[0]
        assert type(one) is type(alone)
        if isinstance(one, SlateResult):
            assert isinstance(alone, SlateResult)
            assert said(one) == said(alone)
        else:
            assert str(one) == str(alone)
    assert isinstance(found[4], RelayError)
    failed = found[5]
    assert isinstance(failed, SlateResult)
    assert failed.fallback_reason is Reason.ERROR
    assert sum(isinstance(one, SlateResult) for one in found) >= 10
