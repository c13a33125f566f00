"""Normalisers against float64, noise, and what must not become a probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaygr.generation.noise import gumbel
from relaygr.generation.normalise import NonFiniteError, row_normalisers, segment_normalisers
from relaygr.generation.reference import log_sum_exp


@pytest.mark.parametrize("columns", [1, 2, 7, 512, 8192, 70_001])
def test_rows_equal_float64_and_do_not_depend_on_their_place(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    rows = torch.randn(11, columns, generator=generator) * 5
    rows[9:] = rows[0]
    found = row_normalisers(rows)
    wanted = torch.logsumexp(rows.double(), 1).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4e-6)
    assert found[0] == found[9] == found[10] == row_normalisers(rows[:1])[0]


def test_segments_equal_float64_and_single_values_are_kept_exactly() -> None:
    values = np.random.default_rng(0).standard_normal(50).astype(np.float32) * 30
    starts = np.array([0, 1, 4, 5, 30])
    found = segment_normalisers(values, starts)
    for at, (low, high) in enumerate(zip(starts, [*starts[1:], 50], strict=True)):
        assert found[at] == pytest.approx(log_sum_exp(values[low:high]), abs=1e-12)
    assert found[0] == values[0]
    assert found[2] == values[4]


def test_what_is_impossible_stays_minus_infinity() -> None:
    gone = -np.inf
    assert row_normalisers(torch.tensor([[gone, gone], [gone, 1.0]])).tolist() == [gone, 1.0]
    values = np.array([gone, gone, gone, 2.0], np.float32)
    assert segment_normalisers(values, np.array([0, 2])).tolist() == [gone, 2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_number_no_probability(bad: float) -> None:
    rows = torch.zeros(3, 4)
    rows[1, 2] = bad
    with pytest.raises(NonFiniteError, match="beam 1"):
        row_normalisers(rows)
    with pytest.raises(NonFiniteError, match="beam 1"):
        segment_normalisers(rows.numpy().reshape(-1), np.array([0, 4, 8]))


def test_noise_is_a_function_of_seed_level_and_node_and_is_gumbel() -> None:
    nodes = np.arange(200_000)
    noise = gumbel(7, 2, nodes)
    picked = np.array([5, 3, 199_999])
    assert np.array_equal(gumbel(7, 2, picked), noise[picked])
    assert not np.array_equal(gumbel(7, 1, picked), noise[picked])
    assert not np.array_equal(gumbel(8, 2, picked), noise[picked])
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.57722, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)
    # P(noise <= x) = exp(-exp(-x)).
    for x in (-1.0, 0.0, 1.0, 3.0):
        assert (noise <= x).mean() == pytest.approx(np.exp(-np.exp(-x)), abs=0.004)
