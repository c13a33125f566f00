"""The serving loop: modes, deadlines, failures, the trust region, explanations, batches and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slate_cases import (
    ATTRIBUTES,
    HEADS,
    VALUE,
    list_model,
    random_pool,
    random_shown,
    step_config,
    zero_model,
)

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError, RelayError, RequestError
from relaygr.listwise.arrays import Float64, Int32, Int64
from relaygr.listwise.errors import InfeasibleError, SlateNanError
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.explain import Explanation
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.lists import ListModel
from relaygr.listwise.masks import NoRules
from relaygr.listwise.pool import HeadKind, Pool, Shown
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.request import Mode, SlateAsk, seed_of
from relaygr.listwise.result import Reason, SlateResult, Stage
from relaygr.listwise.scene import Scene
from relaygr.listwise.scorer import CountedScorer, scored_pool
from relaygr.listwise.slates import Slates, default_generators
from relaygr.listwise.step import StepModel

MODEL = list_model(1, size=1.5)


def pool_of(seed: int, candidates: int = 40) -> Pool:
    return random_pool(np.random.default_rng(seed), candidates)


def ask_of(seed: int = 0, length: int = 5, **more: object) -> SlateAsk:
    return SlateAsk(request_id=f"r{seed}", length=length, **more)  # type: ignore[arg-type]


def pointwise(pool: Pool, length: int) -> list[int]:
    value = VALUE(pool.natural())
    return sorted(range(len(pool)), key=lambda i: (-value[i], i))[:length]


class Slow:
    """A generator that takes its time at every position, and then returns the list it was given."""

    def __init__(self, clock: ManualClock, position_s: float, picks: list[int], name: str = "slow") -> None:
        self.name, self._clock, self._position_s, self._picks = name, clock, position_s, picks

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        for _ in self._picks:
            budget.check()
            self._clock.advance(self._position_s)
        return [Proposal(np.array(self._picks, dtype=np.int32), self.name)]


class Failing:
    """A generator that raises."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        raise self._error


class Fixed:
    """Proposes given columns of the region, whatever they are."""

    def __init__(self, *lists: list[int], name: str = "fixed") -> None:
        self.name, self._lists = name, lists

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        return [Proposal(np.array(picks, dtype=np.int32), self.name) for picks in self._lists]


class Counting:
    """An evaluator that is not light, likes lists that begin with high columns, and counts its batches."""

    version, light = "counting", False

    def __init__(self) -> None:
        self.batches: list[int] = []

    def evaluate(self, scene: Scene, picks: Int32) -> Float64:
        self.batches.append(len(picks))
        return picks[None, :, 0].astype(np.float64)


def test_greedy_and_beam_by_one_search_are_the_same_answers() -> None:
    model = list_model(3, size=1.0)
    apart, joint = Slates(VALUE, model), Slates(VALUE, model, joint_ms=20.0)
    for seed in range(40):
        pool = random_pool(np.random.default_rng(seed), 60, ties=seed % 4 == 0)
        for budget_ms in (None, 1e6):
            ask = SlateAsk(request_id=f"r{seed}", length=3 + seed % 8, budget_ms=budget_ms)
            one, other = apart.serve(ask, pool), joint.serve(ask, pool)
            assert one.items.tolist() == other.items.tolist()
            assert (one.generator, one.utility, one.stage_reached) == (
                other.generator,
                other.utility,
                other.stage_reached,
            )
            assert [(each.generator, each.also, each.picks.tolist(), each.score) for each in one.pool] == [
                (each.generator, each.also, each.picks.tolist(), each.score) for each in other.pool
            ]


def test_lists_are_whole_and_of_the_pool() -> None:
    slates = Slates(VALUE, MODEL)
    moved = 0
    for seed in range(25):
        pool = pool_of(seed)
        result = slates.serve(ask_of(seed, shown=random_shown(np.random.default_rng(seed), seed % 3)), pool)
        assert len(result.items) == 5
        assert len(set(result.items.tolist())) == 5
        assert result.items.tolist() == pool.ids[result.picks].tolist()
        assert result.stage_reached is Stage.EVALUATION
        assert result.fallback_reason is None
        moved += result.picks.tolist() != pointwise(pool, 5)
    assert moved > 12


def test_untrained_layer_returns_the_pointwise_order() -> None:
    slates = Slates(VALUE, zero_model())
    for seed in range(15):
        pool = random_pool(np.random.default_rng(seed), 30, ties=bool(seed % 2))
        result = slates.serve(ask_of(seed, length=6), pool)
        assert result.picks.tolist() == pointwise(pool, 6)
        assert result.generator == "pointwise"
        assert result.pool[0].also[:2] == ("greedy", "beam4")


def test_chosen_list_has_the_highest_value_of_the_pool() -> None:
    slates = Slates(VALUE, MODEL)
    for seed in range(10):
        result = slates.serve(ask_of(seed), pool_of(seed))
        assert result.score == max(each.score for each in result.pool if each.score is not None)
        assert result.utility == pytest.approx(result.score, rel=1e-12)
        assert result.lower_bound == result.score  # one member has no spread


def test_off_calls_no_list_model() -> None:
    class Untouchable:
        name = "untouchable"

        def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
            raise AssertionError("a list model was called")

    slates = Slates(VALUE, MODEL, generators={Stage.GREEDY: (Untouchable(),)})
    pool = pool_of(0)
    result = slates.serve(ask_of(mode=Mode.OFF), pool)
    assert result.picks.tolist() == pointwise(pool, 5)
    assert (result.fallback_reason, result.error) == (Reason.OFF, "")
    assert (result.utility, result.explanation, result.versions.step) == (None, None, "")
    assert slates.serve(ask_of(), pool).fallback_reason is Reason.ERROR


def test_shadow_computes_and_returns_the_fallback() -> None:
    pool = next(
        p for p in map(pool_of, range(20)) if Slates(VALUE, MODEL).serve(ask_of(), p).generator != "pointwise"
    )
    on = Slates(VALUE, MODEL).serve(ask_of(), pool)
    slates = Slates(VALUE, MODEL, mode=Mode.SHADOW)
    result = slates.serve(ask_of(), pool)
    assert result.picks.tolist() == pointwise(pool, 5)
    assert result.fallback_reason is Reason.SHADOW
    assert result.shadow is not None
    assert result.shadow.picks.tolist() == on.picks.tolist()
    assert result.shadow.utility == on.utility
    # The request's mode goes before the server's.
    assert slates.serve(ask_of(mode=Mode.ON), pool).picks.tolist() == on.picks.tolist()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("odd"), Reason.ERROR),
        (ZeroDivisionError(), Reason.ERROR),
        (RequestError("vectors", "missing"), Reason.ERROR),
        (SlateNanError("net"), Reason.NAN),
    ],
)
@pytest.mark.parametrize("mode", [Mode.ON, Mode.SHADOW])
def test_whatever_fails_ends_in_the_fallback(error: Exception, reason: Reason, mode: Mode) -> None:
    slates = Slates(VALUE, MODEL, mode=mode, generators={Stage.BEAM: (Failing(error),)})
    pool = pool_of(0)
    result = slates.serve(ask_of(), pool)
    assert result.picks.tolist() == pointwise(pool, 5)
    assert (result.fallback_reason, result.shadow) == (reason, None)
    assert str(error) in result.error
    assert result.stage_reached is Stage.GREEDY
    assert slates.counts.snapshot()["fallback", reason.value] == 1


def test_numbers_that_are_not_finite_end_in_the_fallback() -> None:
    config = step_config()
    tensors = dict(StepModel.zero(config).tensors)
    tensors["groups.place.hidden.bias"] = np.full_like(tensors["groups.place.hidden.bias"], 3e38)
    tensors["groups.place.out.weight"] = np.full_like(tensors["groups.place.out.weight"], 3e38)
    slates = Slates(VALUE, ListModel(StepModel(config, tensors), VALUE))
    pool = pool_of(0)
    with np.errstate(all="ignore"):
        result = slates.serve(ask_of(), pool)
    assert result.picks.tolist() == pointwise(pool, 5)
    assert result.fallback_reason is Reason.NAN


class Loves(Counting):
    """Loves lists that begin with column 7."""

    light = True

    def evaluate(self, scene: Scene, picks: Int32) -> Float64:
        return (picks[None, :, 0] == 7).astype(np.float64)


@pytest.mark.parametrize(
    ("wrong", "what"), [([7, 7, 1, 2, 3], "twice"), ([7, 1, 2, 3], "4 picks"), ([7, 1, 2, 3, 99], "region")]
)
def test_a_proposal_that_breaks_a_rule_does_not_compete(wrong: list[int], what: str) -> None:
    """The others do."""
    proposing = {Stage.GREEDY: (Fixed(wrong, [7, 1, 2, 3, 4], wrong),), Stage.BEAM: (Beam(MODEL),)}
    slates = Slates(VALUE, MODEL, generators=proposing, evaluator=Loves())  # type: ignore[arg-type]
    pool = pool_of(0)
    result = slates.serve(ask_of(), pool)
    order = pointwise(pool, 40)
    assert result.picks.tolist() == [order[i] for i in (7, 1, 2, 3, 4)]
    assert [each.generator for each in result.pool] == ["pointwise", "fixed", "beam4"]
    assert (result.fallback_reason, result.error) == (None, "")
    assert [each.generator for each in result.dropped] == ["fixed", "fixed"]
    assert what in "; ".join(result.dropped[0].broken)
    assert slates.counts.snapshot()["dropped", "fixed"] == 2


@dataclass(frozen=True)
class Wavering(NoRules):
    """Finds nothing wrong with so many lists, and something with the others."""

    right: list[int] = field(default_factory=list)

    def violations(self, *args: object) -> tuple[str, ...]:
        self.right[0] -= 1
        return () if self.right[0] >= 0 else ("rule: position 0",)


def test_the_list_that_is_returned_is_checked_once_more() -> None:
    slates = Slates(VALUE, MODEL, generators={Stage.GREEDY: (Fixed([7, 1, 2, 3, 4]),)}, evaluator=Loves())
    pool = pool_of(0)
    result = slates.serve(ask_of(rules=Wavering(right=[2])), pool)
    assert result.picks.tolist() == pointwise(pool, 5)
    assert (result.fallback_reason, result.error) == (Reason.RULES, "rule: position 0")
    assert result.dropped == ()
    assert slates.serve(ask_of(rules=Wavering(right=[3])), pool).generator == "fixed"


def timed(position_s: float, budget_ms: float, light: bool) -> tuple[SlateResult, Slates, ManualClock, Pool]:
    clock = ManualClock()
    greedy = Slow(clock, position_s, [6, 1, 2, 3, 4], "greedy")
    beam = Slow(clock, position_s, [8, 1, 2, 3, 4], "beam4")
    other = Slow(clock, position_s, [9, 1, 2, 3, 4], "other")
    evaluator = Counting()
    evaluator.light = light  # type: ignore[misc]
    slates = Slates(
        VALUE,
        MODEL,
        generators={Stage.GREEDY: (greedy,), Stage.BEAM: (beam,), Stage.GENERATORS: (other,)},
        evaluator=evaluator,
        clock=clock,
    )
    pool = pool_of(0)
    return slates.serve(ask_of(budget_ms=budget_ms), pool), slates, clock, pool


def test_deadline_within_greedy_returns_the_pointwise_list() -> None:
    result, slates, clock, pool = timed(0.010, budget_ms=25, light=True)
    assert result.picks.tolist() == pointwise(pool, 5)
    assert (result.fallback_reason, result.stage_reached) == (Reason.DEADLINE, Stage.FALLBACK)
    assert clock.now_s() == pytest.approx(0.030)  # at most one position late
    counts = slates.counts.snapshot()
    assert counts["timeout", ""] == counts["fallback", "deadline"] == 1


def test_deadline_within_beam_returns_the_best_that_was_evaluated() -> None:
    result, _, clock, pool = timed(0.010, budget_ms=75, light=True)
    assert (result.generator, result.stage_reached) == ("greedy", Stage.GREEDY)
    assert result.picks.tolist()[0] == pointwise(pool, 40)[6]
    assert result.fallback_reason is None
    assert clock.now_s() == pytest.approx(0.080)


def test_deadline_before_a_heavy_evaluator_returns_the_pointwise_list() -> None:
    result, _, _, pool = timed(0.010, budget_ms=125, light=False)
    assert result.picks.tolist() == pointwise(pool, 5)
    assert (result.fallback_reason, result.stage_reached) == (Reason.DEADLINE, Stage.BEAM)


def test_in_time_all_stages_are_reached() -> None:
    for light in (True, False):
        result, slates, _, _ = timed(0.010, budget_ms=1000, light=light)
        assert (result.generator, result.stage_reached) == ("other", Stage.EVALUATION)
        assert slates.counts.snapshot()["generator", "other"] == 1
        assert result.stage_ms["beam"] == pytest.approx(50)


def test_heavy_evaluators_get_one_batch_of_different_lists() -> None:
    evaluator = Counting()
    twice = Fixed([5, 1, 2, 3, 4], [5, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    slates = Slates(VALUE, MODEL, generators={Stage.GREEDY: (twice,)}, evaluator=evaluator)
    result = slates.serve(ask_of(), pool_of(0))
    assert evaluator.batches == [2]
    assert [each.generator for each in result.pool] == ["pointwise", "fixed"]
    assert result.pool[0].also == ("fixed",)


def test_a_time_limit_alone_changes_no_result() -> None:
    clock = ManualClock()
    free, limited = Slates(VALUE, MODEL), Slates(VALUE, MODEL, clock=clock)
    for seed in range(5):
        a = free.serve(ask_of(seed), pool_of(seed))
        b = limited.serve(ask_of(seed, budget_ms=1e6), pool_of(seed))
        assert (a.picks.tolist(), a.score, a.pool[-1].score) == (b.picks.tolist(), b.score, b.pool[-1].score)


def test_trust_region_holds_by_default_and_goes_by_request_only() -> None:
    far = Fixed([31, 1, 2, 3, 4], [12, 13, 14, 3, 4], [12, 13, 2, 3, 4], name="far")
    slates = Slates(VALUE, MODEL, generators={Stage.GREEDY: (far,)}, evaluator=Counting())
    pool = pool_of(0)
    order = pointwise(pool, 40)
    # Column 31 is no column of the region of 30; three of five picks beyond the top 10 are too many.
    inside = Slates(VALUE, MODEL, generators={Stage.GREEDY: (Fixed(*far._lists[1:], name="far"),)})
    result = inside.serve(ask_of(), pool)
    assert [each.picks.tolist() for each in result.pool] == [order[:5], [order[i] for i in (12, 13, 2, 3, 4)]]
    assert not result.unrestricted
    result = slates.serve(ask_of(unrestricted=True), pool)
    assert result.picks.tolist() == [order[i] for i in (31, 1, 2, 3, 4)]
    assert result.unrestricted
    assert slates.counts.snapshot()["unrestricted", ""] == 1


def test_searches_stay_in_the_region() -> None:
    generators = {Stage.BEAM: (Beam(MODEL, 4, top=None),)}
    slates = Slates(VALUE, MODEL, generators=generators)
    for seed in range(15):
        pool = pool_of(seed, 60)
        order = pointwise(pool, 60)
        for each in slates.serve(ask_of(seed), pool).pool:
            ranks = [order.index(pick) for pick in each.picks.tolist()]
            assert max(ranks) < 30
            assert sum(rank < 10 for rank in ranks) >= 3


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), shown=st.sampled_from([0, 3]), exit=st.booleans())
def test_explanations_sum(seed: int, shown: int, exit: bool) -> None:
    model = list_model(seed, exit=exit)
    random = np.random.default_rng(seed)
    ask = ask_of(seed, shown=random_shown(random, shown) if shown else None)
    result = Slates(VALUE, model).serve(ask, random_pool(random, 12))
    assert result.explanation is not None
    check_sums(result.explanation, first=0.8 if shown else 1.0)
    assert result.utility == result.explanation.utility
    assert [part.item for part in result.explanation.picks] == result.items.tolist()


def check_sums(explanation: Explanation, first: float) -> None:
    survival, total = first, 0.0
    for part in explanation.picks:
        natural = []
        for head in part.heads.values():
            if head.kind is HeadKind.BINARY:
                logit = head.scale * head.base + head.bias + sum(head.terms.values())
                assert head.conditional == pytest.approx(logit, rel=1e-12, abs=1e-12)
                natural.append(1.0 / (1.0 + math.exp(-logit)))
            else:
                value = head.base * math.exp(head.bias + sum(head.terms.values()))
                assert head.conditional == pytest.approx(value, rel=1e-12)
                natural.append(value)
        worth = sum(part.value_terms) + part.clipping - sum(each.price for each in part.effects)
        assert part.value == pytest.approx(worth, rel=1e-12, abs=1e-12)
        assert float(VALUE(np.array(natural)[:, None])[0]) == pytest.approx(part.value, rel=1e-9)
        assert part.survival == pytest.approx(survival, rel=1e-12)
        assert part.contribution == part.survival * part.value
        total += part.contribution
        leave = part.exit
        if math.isfinite(leave.logit):
            assert leave.logit == pytest.approx(
                leave.bias + sum(leave.terms.values()) + leave.heads, abs=1e-12
            )
            wanted = min(1.0 / (1.0 + math.exp(-leave.logit)), 1.0 - 1e-6)
            assert leave.probability == pytest.approx(wanted, rel=1e-9)
        survival *= 1.0 - leave.probability
    assert total == explanation.utility
    assert explanation.unpriced == explanation.utility


def test_batch_is_one_request_after_the_other() -> None:
    slates = Slates(VALUE, MODEL)
    asks = [ask_of(seed, length=3 + seed % 3) for seed in range(6)]
    pools = [pool_of(seed) for seed in range(6)]
    bad = replace(pools[0], heads=HEADS[:2], outputs=pools[0].outputs[:, :2])
    results = slates.serve_batch([*asks, asks[0]], [*pools, bad])
    assert isinstance(results[-1], RelayError)
    for ask, pool, result in zip(asks, pools, results, strict=False):
        assert isinstance(result, SlateResult)
        alone = Slates(VALUE, MODEL).serve(ask, pool)
        assert replace(result, stage_ms={}, picks=None, items=None, pool=()) == replace(  # type: ignore[arg-type]
            alone,
            stage_ms={},
            picks=None,
            items=None,
            pool=(),  # type: ignore[arg-type]
        )
        assert result.picks.tolist() == alone.picks.tolist()


def test_short_pools_give_short_lists_or_an_error() -> None:
    slates = Slates(VALUE, MODEL)
    pool = pool_of(0, 3)
    result = slates.serve(ask_of(), pool)
    assert len(result.items) == 3
    assert [(each.rule, each.position) for each in result.relaxations] == [("length", 3)]
    assert slates.counts.snapshot()["relaxed", "length"] == 1
    with pytest.raises(InfeasibleError, match="3 candidates for 5"):
        slates.serve(ask_of(allow_short=False), pool)
    shown = Shown(ids=pool.ids, attributes=pool.attributes)
    with pytest.raises(InfeasibleError, match="length"):
        slates.serve(ask_of(shown=shown), pool)


def test_the_next_page_knows_the_last_one() -> None:
    """Order effects and exclusion cross the border: shown items change what is chosen."""
    slates, changed = Slates(VALUE, MODEL), 0
    for seed in range(10):
        pool = pool_of(seed)
        first = slates.serve(ask_of(seed), pool)
        seen = pool.select(first.picks)
        shown = Shown(ids=seen.ids, attributes=seen.attributes, vectors=seen.vectors)
        second = slates.serve(ask_of(seed, shown=shown), pool)
        assert not set(second.items.tolist()) & set(first.items.tolist())
        rest = np.array([i for i in range(40) if i not in set(first.picks.tolist())])
        amnesic = slates.serve(ask_of(seed), pool.select(rest))
        changed += second.items.tolist() != amnesic.items.tolist()
    assert changed


def test_heavy_scorer_runs_once_a_candidate() -> None:
    class Ranker:
        heads = HEADS

        def score(self, ids: Int64) -> np.ndarray:  # type: ignore[type-arg]
            return np.stack([np.sin(ids), np.cos(ids), np.abs(np.sin(2 * ids))], axis=1)

    counted = CountedScorer(Ranker())
    other = pool_of(3)
    pool = scored_pool(counted, other.ids, other.attributes, other.vectors)
    generators = dict(default_generators(MODEL)) | {Stage.GENERATORS: (Beam(MODEL, 9, top=None),)}
    Slates(VALUE, MODEL, generators=generators).serve(ask_of(), pool)
    assert (counted.calls, counted.items) == (1, len(pool))


def test_wrong_rankers_are_told() -> None:
    class Wrong:
        heads = HEADS

        def __init__(self, outputs: np.ndarray) -> None:  # type: ignore[type-arg]
            self._outputs = outputs

        def score(self, ids: Int64) -> np.ndarray:  # type: ignore[type-arg]
            return self._outputs

    ids = np.arange(4)
    for outputs, part in ((np.zeros((4, 2)), "shape"), (np.full((4, 3), np.nan), "not finite")):
        with pytest.raises(RelayError, match=part):
            scored_pool(Wrong(outputs), ids)


def test_versions_and_features_are_in_the_result() -> None:
    result = Slates(VALUE, MODEL).serve(ask_of(), pool_of(0))
    assert result.versions.value == VALUE.version
    assert result.versions.step == MODEL.step.version
    assert result.versions.evaluator == Rescore([MODEL]).version
    assert result.versions.rules == NoRules().version
    assert set(result.context) == set(MODEL.step.features.names)
    assert result.context["position"] == pytest.approx(0.4)


def test_seeds_are_of_request_and_generator() -> None:
    assert seed_of("a", "pl") == seed_of("a", "pl")
    assert len({seed_of(r, g) for r in ("a", "b", "ap", "") for g in ("pl", "l", "mmr")}) == 12


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="mode"):
        Slates(VALUE)
    with pytest.raises(ConfigError, match="distinct"):
        Slates(VALUE, MODEL, generators={Stage.GREEDY: (Fixed([0]),), Stage.BEAM: (Fixed([1]),)})
    off = Slates(VALUE, mode=Mode.OFF)
    assert off.serve(ask_of(), pool_of(0)).fallback_reason is Reason.OFF
    with pytest.raises(RequestError, match="step model"):
        off.serve(ask_of(mode=Mode.ON), pool_of(0))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"length": 0}, "length"),
        ({"slots": (1, 2)}, "slots"),
        ({"slots": (0, 0, 0, 0, -1)}, "slots"),
        ({"budget_ms": 0.0}, "budget_ms"),
        ({"consumed": -1}, "consumed"),
        ({"mode": "maybe"}, "mode"),
    ],
)
def test_wrong_requests(change: dict[str, object], part: str) -> None:
    with pytest.raises(RequestError, match=part):
        ask_of(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"ids": np.array([1, 1, 2])}, "twice"),
        ({"ids": np.zeros(0, dtype=np.int64)}, "ids"),
        ({"outputs": np.zeros((3, 2), dtype=np.float32)}, "outputs"),
        ({"outputs": np.full((3, 3), np.inf, dtype=np.float32)}, "not finite"),
        ({"outputs": np.full((3, 3), -1, dtype=np.float32)}, "watch_s"),
        ({"attributes": {"topic": np.zeros(2, dtype=np.int64)}}, "topic"),
        ({"vectors": np.ones((3, 2), dtype=np.float32)}, "length 1"),
        ({"heads": HEADS[:1] * 3}, "distinct"),
    ],
)
def test_wrong_pools(change: dict[str, object], part: str) -> None:
    good = random_pool(np.random.default_rng(0), 3)
    with pytest.raises(RequestError, match=part):
        replace(good, **change)  # type: ignore[arg-type]
    assert set(good.attributes) == set(ATTRIBUTES)
