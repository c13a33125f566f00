"""The sizes that catalogues have in practice: seconds of processor time and bytes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.check import find_fault
from relaygr.generation.catalogue.rows import Rows


def skewed(items: int, levels: int, size: int, repeats: int) -> Rows:
    """Unsorted rows with skewed codes; `repeats` of them stand twice."""
    rng = np.random.default_rng(7)
    codes = np.stack([(size * rng.random(items) ** 2).astype(np.int32) for _ in range(levels)], axis=1)
    rows = np.concatenate([rng.permutation(items), rng.integers(0, items, repeats)])
    return Rows(item_ids=rows * 7919, codes=codes[rows])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("items", "levels", "size", "repeats", "limit_s"),
    [(1_500_000, 4, 8192, 75_000, 2.0), (1_500_000, 3, 2048, 75_000, 2.0), (16_000_000, 4, 2048, 0, 15.0)],
    ids=["1.5M of 4 levels", "1.5M of 3 levels", "16M"],
)
def test_seconds_and_bytes(items: int, levels: int, size: int, repeats: int, limit_s: float) -> None:
    rows = skewed(items, levels, size, repeats)
    began = time.process_time()
    built = build_index(rows, (size,) * levels)
    took_s = time.process_time() - began
    print(f"{items} items: {took_s:.2f} s, {built.index.bytes_per_sid:.2f} B a semantic id")
    assert built.duplicates == repeats
    assert built.index.n_items == items
    assert built.index.bytes_per_sid <= 16
    assert took_s <= limit_s
    assert find_fault(built.index) is None
