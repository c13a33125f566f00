"""Platt scaling and normalised entropy against slow formulas, and on data that has no ordinary optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relaygr.training.calibration as calibration
from relaygr.training.calibration import Calibration, PlattFit, entropy

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)


def fitted(requests: list[tuple[list[float], list[bool]]]) -> Calibration:
    fit = PlattFit()
    for scores, positive in requests:
        fit.add(np.array(scores), np.array(positive))
    return fit.fit()


def smoothed_loss(requests: list[tuple[list[float], list[bool]]], slope: float, intercept: float) -> float:
    """The loss that Platt's fit minimises, one candidate at a time."""
    ones = sum(sum(positive) for _, positive in requests)
    zeros = sum(len(positive) for _, positive in requests) - ones
    total = 0.0
    for scores, positive in requests:
        for score, hit in zip(scores, positive, strict=True):
            target = (ones + 1) / (ones + 2) if hit else 1 / (zeros + 2)
            p = 1 / (1 + math.exp(-(slope * score + intercept)))
            total -= (target * math.log(p) + (1 - target) * math.log(1 - p)) / len(scores)
    return total / len(requests)


def test_cross_entropy_and_entropy_by_hand() -> None:
    scores, positive = [0.5, -2.0, 3.0], [True, False, False]
    one = Calibration(0.7, -0.3)
    slow = 0.0
    for score, hit in zip(scores, positive, strict=True):
        p = 1 / (1 + math.exp(-(0.7 * score - 0.3)))
        slow -= math.log(p if hit else 1 - p) / 3
    assert one.cross_entropy(np.array(scores), np.array(positive)) == pytest.approx(slow)
    assert entropy(np.array([0.25, 0.5])) == pytest.approx(
        [-0.25 * math.log(0.25) - 0.75 * math.log(0.75), math.log(2)]
    )


@given(st.integers(1, 30), st.integers(1, 30))
def test_the_base_rate_has_a_normalised_entropy_of_one(ones: int, zeros: int) -> None:
    share = ones / (ones + zeros)
    constant = Calibration(0.0, math.log(share / (1 - share)))
    positive = np.arange(ones + zeros) < ones
    found = constant.cross_entropy(np.random.default_rng(0).normal(size=ones + zeros), positive)
    assert found / float(entropy(np.array(share))) == pytest.approx(1, abs=1e-12)


def test_a_fit_finds_what_made_the_data() -> None:
    rng = np.random.default_rng(0)
    fit = PlattFit()
    for _ in range(400):
        scores = rng.normal(3, 5, size=100)
        fit.add(scores, rng.random(100) < 1 / (1 + np.exp(-(0.5 * scores - 4))))
    found = fit.fit()
    assert (found.slope, found.intercept) == pytest.approx((0.5, -4), rel=0.03)


def test_no_neighbour_of_a_fit_is_better() -> None:
    rng = np.random.default_rng(1)
    requests = [
        (scores.tolist(), (scores + rng.normal(size=len(scores)) > 1).tolist())
        for scores in (rng.normal(size=int(rng.integers(2, 9))) for _ in range(20))
    ]
    found = fitted(requests)
    best = smoothed_loss(requests, found.slope, found.intercept)
    for step in (1e-3, 0.1):
        for a, b in ((step, 0), (-step, 0), (0, step), (0, -step), (step, -step)):
            assert smoothed_loss(requests, found.slope + a, found.intercept + b) > best


def test_every_request_counts_once() -> None:
    rng = np.random.default_rng(3)
    small = [(rng.normal(size=2), np.array([True, False])) for _ in range(300)]
    large = [(rng.normal(size=4) + 1, np.array([True, False, False, True])) for _ in range(300)]
    twice = [(np.tile(scores, 2), np.tile(positive, 2)) for scores, positive in large]
    again = [*large, *large]
    once, doubled, repeated = (
        fitted([(scores.tolist(), positive.tolist()) for scores, positive in [*small, *more]])
        for more in (large, twice, again)
    )
    # The smoothed targets count candidates and so move a little; the weights of the requests do not.
    assert (doubled.slope, doubled.intercept) == pytest.approx((once.slope, once.intercept), abs=2e-3)
    assert abs(repeated.slope - once.slope) > 0.01


@pytest.mark.parametrize(
    ("scores", "positive", "slope_sign"),
    [
        ([0.0, 1.0, 2.0, 3.0], [False, False, True, True], 1),  # separable
        ([0.0, 1.0, 2.0, 3.0], [True, True, False, False], -1),
        ([1.0, 1.0, 1.0], [True, False, False], 0),  # nothing to go by
        ([1e30, 1e30 * (1 + 1e-12)], [True, False], 0),
        ([5.0], [True], 0),
        ([0.0, 1.0], [False, False], 0),  # one kind only: nearly constant
        ([-3e38, 3e38], [False, True], 1),
    ],
)
def test_degenerate_data_gives_finite_numbers(
    scores: list[float], positive: list[bool], slope_sign: int
) -> None:
    found = fitted([(scores, positive)])
    assert math.isfinite(found.slope)
    assert math.isfinite(found.intercept)
    assert np.sign(round(found.slope * (max(scores) - min(scores)), 6)) == slope_sign
    assert math.isfinite(found.cross_entropy(np.array(scores), np.array(positive)))


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(FLOATS, st.booleans()), min_size=1, max_size=6), min_size=1, max_size=5))
def test_any_finite_scores_fit(requests: list[list[tuple[float, bool]]]) -> None:
    plain = [([score for score, _ in one], [hit for _, hit in one]) for one in requests]
    found = fitted(plain)
    assert math.isfinite(found.slope)
    assert math.isfinite(found.intercept)
    # Never worse than knowing nothing but the smoothed rate, up to rounding.
    rate = np.mean([_targets(plain, positive).mean() for _, positive in plain])
    base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    losses = []
    for scores, positive in plain:
        logits = found.slope * np.array(scores) + found.intercept
        losses.append(np.mean(np.logaddexp(0, logits) - _targets(plain, positive) * logits))
    assert np.mean(losses) <= base + 1e-6


def _targets(requests: list[tuple[list[float], list[bool]]], positive: list[bool]) -> np.ndarray:
    ones = sum(sum(hits) for _, hits in requests)
    zeros = sum(len(hits) for _, hits in requests) - ones
    return np.where(positive, (ones + 1) / (ones + 2), 1 / (zeros + 2))


def test_a_sample_of_negatives_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    requests = []
    for _ in range(60):
        scores = rng.normal(size=2000)
        requests.append((scores, rng.random(2000) < 1 / (1 + np.exp(-(2 * scores - 5)))))
    found = []
    for most in (1 << 14, 400):
        monkeypatch.setattr(calibration, "MOST_NEGATIVES", most)
        fit = PlattFit()
        for scores, positive in requests:
            fit.add(scores, positive)
        found.append(fit.fit())
    whole, sampled = found
    assert sampled.slope == pytest.approx(whole.slope, rel=0.05)
    assert sampled.intercept == pytest.approx(whole.intercept, rel=0.05)
    assert sampled != whole


def test_bad_scores_are_named() -> None:
    fit = PlattFit()
    with pytest.raises(ValueError, match="scores: 1 of 2 are not finite"):
        fit.add(np.array([0.0, np.nan]), np.array([True, False]))
    with pytest.raises(ValueError, match="scores: 0 candidates"):
        fit.add(np.zeros(0), np.zeros(0, dtype=bool))
    with pytest.raises(ValueError, match="requests: 0 were added"):
        fit.fit()
