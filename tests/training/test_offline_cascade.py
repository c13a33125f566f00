"""Off-policy estimates: against the formula, against the truth of small worlds, and where they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from offline_cases import EVALUATED, SMALL, softmax_steps, truth

from relaygr.core.errors import ConfigError
from relaygr.training.slate.offline import reference
from relaygr.training.slate.offline.cascade import (
    LEAST_ESS,
    Doubt,
    Estimator,
    ModelSteps,
    Steps,
    doubly_robust_values,
    effective_size,
    estimate,
    ips_values,
    replay,
)
from relaygr.training.slate.world import World


def random_steps(seed: int, N: int = 60, L: int = 5) -> Steps:
    random = np.random.default_rng(seed)
    model = {name: random.random((N, L)) for name in ModelSteps.__dataclass_fields__}
    return Steps(
        users=random.integers(0, 20, N),
        consumed=random.integers(0, L + 1, N),
        reward=random.random((N, L)),
        log_logging=np.log(random.uniform(0.1, 1, (N, L))),
        log_target=np.log(random.uniform(0.1, 1, (N, L))),
        model=ModelSteps(**model),
    )


@pytest.mark.parametrize("seed", range(5))
def test_vectors_agree_with_the_formula(seed: int) -> None:
    steps = random_steps(seed)
    ips, robust = ips_values(steps).mean(axis=0), doubly_robust_values(steps).mean(axis=0)
    weights = steps.weights()
    for depth in range(1, 6):
        assert ips[depth - 1] == pytest.approx(reference.ips(steps, depth), rel=1e-12)
        assert robust[depth - 1] == pytest.approx(reference.doubly_robust(steps, depth), rel=1e-10)
        ess = effective_size(weights[:, depth - 1])
        assert ess == pytest.approx(reference.effective_size(steps, depth), rel=1e-12)


def test_replay_agrees_with_the_formula() -> None:
    steps = random_steps(1, N=4000)
    matching = np.random.default_rng(2).integers(1, 6, 4000)
    found = replay("p", steps, matching)
    assert any(one.estimable for one in found)
    for one in found:
        if one.mean is not None:
            assert one.mean == pytest.approx(reference.replay(steps, matching, one.depth), rel=1e-10)


def test_nothing_behind_the_exit_is_read() -> None:
    steps = random_steps(3)
    behind = ~steps.seen
    spoilt = replace(
        steps,
        reward=np.where(behind, np.nan, steps.reward),
        log_logging=np.where(behind, np.nan, steps.log_logging),
        log_target=np.where(behind, np.nan, steps.log_target),
    )
    assert np.array_equal(ips_values(steps), ips_values(spoilt))
    assert np.array_equal(doubly_robust_values(steps), doubly_robust_values(spoilt))


def test_the_logging_policy_itself_is_the_mean_of_the_logs() -> None:
    steps = random_steps(4, N=500)
    same = replace(steps, log_target=steps.log_logging)
    found = [one for one in estimate("logged", same) if one.estimator is Estimator.CASCADE_IPS]
    utility = np.cumsum(np.where(same.seen, same.reward, 0.0), axis=1).mean(axis=0)
    assert [one.mean for one in found] == pytest.approx(utility.tolist())
    assert all(one.ess == pytest.approx(500) and one.mean_weight == pytest.approx(1) for one in found)


def test_too_small_a_sample_is_not_estimable() -> None:
    steps = random_steps(5, N=250)
    found = estimate("p", steps)
    small = [one for one in found if one.ess < LEAST_ESS]
    assert small
    assert all(one.mean is None and one.low is None and not one.estimable for one in small)
    assert all(one.estimable for one in found if one.ess >= LEAST_ESS)
    nobody = replay("p", steps, np.where(steps.consumed > 0, 0, 0))
    assert all(not one.estimable for one in nobody)


def test_a_right_model_makes_up_for_wrong_propensities() -> None:
    random = np.random.default_rng(6)
    N, chances, target = 4_000, np.array([0.2, 0.5, 0.9]), np.array([0.6, 0.3, 0.1])
    shown = random.integers(0, 3, N)
    reward = (random.random(N) < chances[shown]).astype(np.float64)[:, None]
    column = lambda values: np.broadcast_to(values, (N,))[:, None].astype(np.float64)  # noqa: E731
    zeros = column(0.0)
    steps = Steps(
        users=np.arange(N),
        consumed=np.ones(N, dtype=np.int64),
        reward=reward,
        log_logging=column(np.log(0.6)),  # 1 / 3 is right
        log_target=np.log(target[shown])[:, None],
        model=ModelSteps(column(chances[shown]), zeros, column(chances @ target), zeros, zeros, zeros),
    )
    robust, ips = estimate("p", steps)
    assert robust.mean is not None
    assert ips.mean is not None
    assert robust.mean == pytest.approx(chances @ target, abs=0.02)
    assert abs(ips.mean - chances @ target) > 0.1
    assert abs(ips.mean_weight - 1) > 0.3  # and it shows


def test_missing_propensities_and_labels_are_refused() -> None:
    steps = random_steps(7)
    seen = np.argwhere(steps.seen)[0]
    for name, field in (
        ("log_logging", "log_propensity"),
        ("reward", "labels"),
        ("log_target", "log_target"),
    ):
        values = getattr(steps, name).copy()
        values[tuple(seen)] = np.nan
        with pytest.raises(ConfigError, match=field):
            replace(steps, **{name: values})
    with pytest.raises(ConfigError, match="depths: 9"):
        estimate("p", steps, depths=[9])


def coverage(logs: int, lists: int) -> dict[tuple[Estimator, int], list[bool]]:
    """How often intervals hold the mean true utility over all requests of the world."""
    world = World(SMALL)
    real = truth(world.requests(20_000, 5), EVALUATED, draws=4)
    found: dict[tuple[Estimator, int], list[bool]] = {}
    for number in range(logs):
        steps, _ = softmax_steps(world, lists, 100 + number)
        for one in estimate("p", steps, seed=number):
            assert one.ess >= LEAST_ESS
            assert one.low is not None
            assert one.high is not None
            inside = one.low <= real[one.depth - 1] <= one.high
            found.setdefault((one.estimator, one.depth), []).append(inside)
    return found


def test_intervals_hold_the_truth() -> None:
    found = coverage(25, 500)
    for form in (Estimator.CASCADE_IPS, Estimator.DOUBLY_ROBUST):
        assert np.mean([found[form, depth] for depth in range(1, 5)]) >= 0.9


@pytest.mark.slow
def test_intervals_hold_the_truth_at_every_depth() -> None:
    found = coverage(300, 800)
    assert {key: np.mean(held) for key, held in found.items() if np.mean(held) < 0.9} == {}


def test_the_model_makes_intervals_shorter() -> None:
    steps, _ = softmax_steps(World(SMALL), 2000, 1)
    found = {(one.estimator, one.depth): one for one in estimate("p", steps)}

    def width(form: Estimator) -> float:
        one = found[form, 4]
        assert one.high is not None
        assert one.low is not None
        return one.high - one.low

    assert width(Estimator.DOUBLY_ROBUST) < width(Estimator.CASCADE_IPS)


def test_requests_of_one_user_are_drawn_together() -> None:
    """The interval of ten equal copies of every list, as one user's, is that of the lists by themselves."""
    steps, _ = softmax_steps(World(SMALL), 400, 2)
    copied = Steps(
        *(np.repeat(getattr(steps, name), 10, axis=0) for name in ("users", "consumed", "reward")),
        np.repeat(steps.log_logging, 10, axis=0),
        np.repeat(steps.log_target, 10, axis=0),
    )
    once = estimate("p", replace(steps, model=None))
    tenfold = estimate("p", copied)
    for one, ten in zip(once, tenfold, strict=True):
        assert one.low == pytest.approx(ten.low)
        assert one.high == pytest.approx(ten.high)


def test_weights_of_wrong_propensities_estimate_nothing() -> None:
    """Equal weights have the largest effective size there is, whatever is wrong with them."""
    N, L = 1000, 2
    for each, doubt in (
        (0.0, None),
        (-1.0, None),
        (-5.0, Doubt.MEAN),
        (5.0, Doubt.MEAN),
        (-700.0, Doubt.WEIGHTS),
    ):
        steps = Steps(
            users=np.arange(N),
            consumed=np.full(N, L),
            reward=np.ones((N, L)),
            log_logging=np.full((N, L), each),
            log_target=np.zeros((N, L)),
        )
        found = [*estimate("x", steps, (1,)), *replay("x", steps, np.full(N, L), (1,))]
        assert [one.doubt for one in found] == [doubt, doubt]
        assert [one.estimable for one in found] == [doubt is None] * 2
        assert all(one.ess == pytest.approx(N) for one in found)
        assert all(np.isfinite(one.mean_weight) for one in found)
