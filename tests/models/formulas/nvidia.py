"""The `nvidia` variant: slots, item and action tokens in turn, candidates as items; a ReLU head."""

from __future__ import annotations

import math

import numpy as np

from formulas import stu, tables
from formulas.maths import Arrays, Row, relu_network, stacked, unit_length
from relaygr.models.hstu import HstuConfig


def score(p: Arrays, c: HstuConfig, row: Row) -> np.ndarray:
    """Logits [m, tasks]."""
    m = len(row.candidates)
    x = stu.layers(p, c, tokens(p, c, row), m)
    rows = unit_length(x[len(x) - m :])
    return relu_network(p, "head.predict", rows, len(c.head_sizes) + 1, c.relu_last)


def tokens(p: Arrays, c: HstuConfig, row: Row) -> np.ndarray:
    slots = [
        tables.row(p[f"tokens.slot_tables.{table.name}.weight"], table, value)
        for table, value in zip(c.slot_tables, row.contextual, strict=True)
    ]
    rest = []
    for item, action in zip(row.items, row.actions, strict=True):
        rest.append(tables.row(p["tokens.item.weight"], c.items, item))
        if c.action_mode == "interleave":
            rest.append(tables.row(p["tokens.action.weight"], c.actions, action))
    end = len(slots) + len(rest)
    rest += [tables.row(p["tokens.item.weight"], c.items, candidate) for candidate in row.candidates]
    if c.slot_mlp:
        slots = [relu_network(p, "tokens.slot_mlp", vector, 2, c.relu_last) for vector in slots]
    if c.token_mlp:
        rest = [relu_network(p, "tokens.token_mlp", vector, 2, c.relu_last) for vector in rest]
    x = stacked([*slots, *rest], c.hidden_size)
    if not c.position_buckets:
        return x
    places = [min(i, end, c.position_buckets - 1) for i in range(len(x))]
    return math.sqrt(c.hidden_size) * x + p["tokens.position"][places]
