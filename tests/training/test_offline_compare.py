"""Paired comparisons over users: false positives, power, the correction for many tests."""

from __future__ import annotations

import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.training.slate.offline.compare import compare, holm


def worlds(runs: int, users: int, effect: float) -> float:
    """Share of runs in which two methods of 5 seeds differ significantly; users have 1 to 3 requests."""
    found = []
    for run in range(runs):
        random = np.random.default_rng((11, run))
        owner = np.repeat(np.arange(users), random.integers(1, 4, users))
        taste = random.standard_normal(users)[owner]
        values = np.empty((5, len(owner), 2))
        # What a user thinks of the difference is the user's own, and alike in all seeds and requests.
        lean = random.exponential(size=users)[owner] - 1.0 + effect
        for method in range(2):
            noise = 0.3 * random.standard_normal((5, len(owner)))
            values[..., method] = taste + method * lean + noise
        (one,) = compare(["a", "b"], values, owner, "a", seed=run, draws=400).differences
        found.append(one.significant)
    return float(np.mean(found))


def test_equal_methods_seldom_differ() -> None:
    assert worlds(300, 150, 0.0) <= 0.07


@pytest.mark.slow
def test_equal_methods_seldom_differ_in_many_worlds() -> None:
    assert worlds(2000, 150, 0.0) <= 0.07


def test_a_real_difference_is_found() -> None:
    assert worlds(40, 150, 0.5) >= 0.95


def test_holm_against_a_known_table() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9]) == [0.9]
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_few_seeds_make_nothing_significant() -> None:
    values = np.random.default_rng(0).random((4, 200, 2)) + np.array([0.0, 5.0])
    found = compare(["a", "b"], values, np.arange(200), "a")
    assert found.preliminary
    assert not found.differences[0].significant
    assert found.differences[0].low > 4
    assert "preliminary" in found.note
    assert len(found.differences[0].by_seed) == 4


def test_many_comparisons_are_corrected() -> None:
    values = np.random.default_rng(1).standard_normal((5, 300, 21))
    found = compare([f"m{at}" for at in range(21)], values, np.arange(300), "m0")
    assert all(one.holm >= one.p for one in found.differences)
    assert max(one.holm for one in found.differences) == 1.0
    assert "Holm" in found.note
    assert "20 comparisons" in found.note


def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="baseline: 'c'"):
        compare(["a", "b"], np.zeros((1, 3, 2)), np.arange(3), "c")
    with pytest.raises(ConfigError, match="values"):
        compare(["a", "a"], np.zeros((1, 3, 2)), np.arange(3), "a")
