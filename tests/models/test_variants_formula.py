"""H1: every variant with every switch equals its formula, with every kernel."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from formulas import meta, rankers, relay, research
from formulas.maths import Row
from variant_cases import CASES, KERNELS, arrays, random_model, random_row, row_input

from relaygr.models.heads.multitask import clock_angles
from relaygr.models.layers.relative import time_row
from relaygr.models.tokens.meta import age_row
from relaygr.models.tokens.times import gap_bucket

SHAPES = ((0, 4), (1, 1), (13, 0), (31, 3), (32, 7), (40, 5), (0, 0), (20, 140))


@functools.cache
def wanted(name: str) -> tuple[list[Row], list[np.ndarray]]:
    """Rows of a batch and their logits by the formula; the model is made anew for each kernel."""
    config = CASES[name]
    weights = arrays(random_model(config))
    rows = [random_row(config, h, m, seed) for seed, (h, m) in enumerate(SHAPES)]
    return rows, [rankers.score(weights, config, row) for row in rows]


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_a_jagged_batch_equals_the_formula(name: str, kernel_name: str) -> None:
    kernel, dtype, bound = KERNELS[kernel_name]
    rows, logits = wanted(name)
    model = random_model(CASES[name]).cast(dtype)
    with torch.inference_mode():
        got = model([row_input(row) for row in rows], kernel)
    for mine, theirs in zip(got, logits, strict=True):
        assert mine.shape == theirs.shape
        if theirs.size:
            scale = max(1.0, float(np.abs(theirs).max()))
            assert float(np.abs(mine.double().numpy() - theirs).max()) <= bound * scale


def test_buckets_at_their_edges() -> None:
    """Whole-number comparisons in the model, logarithms and roots in the formulas: one row for every age."""
    for exponent in range(37):
        edges = [round(2**exponent), round(60 * math.exp(exponent / 4)), 60 * exponent**2 * 40]
        seconds = [edge + d for edge in edges for d in (-61, -60, -1, 0, 1, 59, 60) if edge + d < 10**11]
        ages = torch.tensor(seconds)
        deep = CASES["meta-ages"]
        assert age_row(ages).clamp(max=60).tolist() == [meta.bucket(deep, age) for age in seconds]
        assert time_row(ages).tolist() == [research.bucket(age) for age in seconds]
        assert gap_bucket(ages).tolist() == [relay.gap_row(age) for age in seconds]
    for row in range(1, 129):
        edge = math.exp(0.301 * row)
        if edge < 10**11:
            around = [math.floor(edge), math.ceil(edge), -math.floor(edge), -math.ceil(edge)]
            assert time_row(torch.tensor(around)).tolist() == [research.bucket(gap) for gap in around]
    roots = [60 * r * r + d for r in (1, 2, 47, 2047, 2048, 33_000) for d in (-1, 0, 59)]
    assert age_row(torch.tensor(roots)).tolist() == [math.isqrt(age // 60) for age in roots]


def test_the_clock_counts_hours_as_float32_does() -> None:
    """Up to 64 s from a full hour a float32 of today's times stands on the other side of it."""
    hour = 1_700_000_000 // 3600 * 3600
    times = [hour + 3600 * h + d for h in (0, 5, 23, 160) for d in range(-130, 130, 3)]
    got = clock_angles(torch.tensor(times)).numpy()
    want = np.array([meta.clock(time) for time in times])
    assert np.abs(got - want).max() <= 1e-12
    exact = [(time // 3600) % 24 for time in times]
    rounded = [int(np.float32(time)) // 3600 % 24 for time in times]
    assert exact != rounded  # or float32 would not matter
