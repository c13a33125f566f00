"""Rows of tables that ids index directly, and what unknown ids get."""

from __future__ import annotations

import numpy as np

from formulas.maths import hash_row
from relaygr.models.switches import Table


def row(weight: np.ndarray, table: Table, value: int) -> np.ndarray:
    """The vector of one id."""
    if table.first <= value < table.rows:
        return weight[value]
    if table.unknown == "default":
        return np.zeros(weight.shape[1])
    if table.unknown == "unknown_row":
        return weight[table.unknown_row]
    assert table.unknown == "hash", "a rejected id has no vector"
    return weight[table.first + hash_row(value, table.rows - table.first, 0)]
