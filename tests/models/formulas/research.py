"""The `meta_research` variant: relative biases, and the newest event's row compared with the candidates."""

from __future__ import annotations

import math

import numpy as np

from formulas import stu, tables
from formulas.maths import Arrays, Row, stacked, unit_length
from relaygr.models.hstu import HstuConfig


def score(p: Arrays, c: HstuConfig, row: Row) -> np.ndarray:
    """Cosines [m, 1]; a user without events has no row, and every candidate scores 0."""
    h, m = len(row.items), len(row.candidates)
    if not h:
        return np.zeros((m, 1))
    table = p["tokens.item.weight"]
    x = math.sqrt(c.hidden_size) * np.array([tables.row(table, c.items, i) for i in row.items])
    x = x + p["tokens.position"][[min(i, c.position_buckets - 1) for i in range(h)]]
    assert isinstance(row.query_time, int)
    after = [*row.times[1:], row.query_time]

    def bias(y: int) -> np.ndarray:
        added = np.zeros((h, h))
        for i in range(h):
            for j in range(i + 1):
                if c.layer.relative_bias != "none":
                    added[i, j] += p[f"layers.{y}.relative.position"][c.max_seq_len - 1 + j - i]
                if c.layer.relative_bias == "position_time":
                    added[i, j] += p[f"layers.{y}.relative.time"][bucket(after[i] - row.times[j])]
        return added

    user = unit_length(stu.layers(p, c, x, 0, bias)[-1])
    vectors = stacked([tables.row(table, c.items, i) for i in row.candidates], c.hidden_size)
    return (unit_length(vectors) @ user)[:, None]


def bucket(gap: int) -> int:
    return min(max(int(math.log(max(abs(gap), 1)) / 0.301), 0), 128)
