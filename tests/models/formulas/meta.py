"""The `meta_stu` variant: production tokens, positions from the end, ages, multi-task head."""

from __future__ import annotations

import math

import numpy as np

from formulas import stu, tables
from formulas.maths import Arrays, Row, linear, norm, stacked, swish_stack, unit_length
from relaygr.models.hstu import HstuConfig

MISSING = -1


def score(p: Arrays, c: HstuConfig, row: Row) -> np.ndarray:
    """Logits [m, tasks]; with positions from the end a row has one query time."""
    m = len(row.candidates)
    x = stu.layers(p, c, tokens(p, c, row), m)
    rows = _postprocessed(p, c, x[len(x) - m :], row)
    table = p["tokens.item.weight"]
    vectors = stacked([tables.row(table, c.items, i) for i in row.candidates], table.shape[1])
    vectors = norm(p, "head.item_norm", swish_stack(p, "head.item", vectors), 1e-5)
    return swish_stack(p, "head.predict", rows * vectors)


def tokens(p: Arrays, c: HstuConfig, row: Row) -> np.ndarray:
    """sqrt(D) times (content + action), plus place."""
    slots, h = len(row.contextual), len(row.items)
    x = [_slot(p, c, row, s) for s in range(slots)]
    for item, action in zip(row.items, row.actions, strict=True):
        x.append(_content(p, c, item) + _action(p, c, action))
    x += [_content(p, c, candidate) + _action(p, c, None) for candidate in row.candidates]
    scaled = math.sqrt(c.hidden_size) * stacked(x, c.hidden_size)
    if c.position == "forward":
        places = [min(i, slots + h, c.position_buckets - 1) for i in range(len(x))]
        return scaled + p["tokens.position"][places]
    end = slots + h
    query = row.query_time
    assert isinstance(query, int)
    times = [0] * slots + row.times + row.queries
    for i, time in enumerate(times):
        back = i if i < slots else min(end - min(i, end) + slots, c.position_buckets - 1)
        scaled[i] += p["tokens.position"][back] + p["tokens.time"][bucket(c, query - time)]
    return scaled


def _slot(p: Arrays, c: HstuConfig, row: Row, s: int) -> np.ndarray:
    least = c.slot_min_history[s] if c.slot_min_history else 0
    table, value = c.slot_tables[s], row.contextual[s]
    if value == MISSING or len(row.items) < least:
        return p["tokens.slot_bias"][s]
    vector = tables.row(p[f"tokens.slot_tables.{table.name}.weight"], table, value)
    return vector @ p["tokens.slot_weight"][s] + p["tokens.slot_bias"][s]


def _content(p: Arrays, c: HstuConfig, value: int) -> np.ndarray:
    return _normed_stack(p, "tokens.content", tables.row(p["tokens.item.weight"], c.items, value))


def _action(p: Arrays, c: HstuConfig, action: int | None) -> np.ndarray | float:
    """Of an event, or of a candidate (None), which has a learned vector in its place."""
    if c.action_mode == "none":
        return 0.0
    if action is None:
        return _normed_stack(p, "tokens.action.stack", p["tokens.action.target"])
    side_by_side = [
        p["tokens.action.table"][b] if action & bits else np.zeros(c.action_dim)
        for b, bits in enumerate(c.action_weights)
    ]
    return _normed_stack(p, "tokens.action.stack", np.concatenate(side_by_side))


def _normed_stack(p: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    return norm(p, f"{name}.norm", swish_stack(p, f"{name}.stack", x), 1e-5)


def bucket(c: HstuConfig, age: int) -> int:
    limit = c.time_buckets if c.time_bucket_limit == "rows" else min(c.hidden_size - 1, c.time_buckets)
    return min(max(int(math.sqrt(max(age, 1e-6) / 60)), 0), limit)


def _postprocessed(p: Arrays, c: HstuConfig, rows: np.ndarray, row: Row) -> np.ndarray:
    if c.postprocess == "none":
        return rows
    if c.postprocess == "l2":
        return unit_length(rows)
    if c.postprocess == "time_norm":
        angles = stacked([clock(query) for query in row.queries], 4)
        rows = linear(p, "head.combine", np.concatenate([rows, angles], axis=1))
    return norm(p, "head.post_norm", rows, 1e-5)


def clock(time_s: int) -> list[float]:
    """Cosine and sine of hour and weekday; hours and days are counted in float32, and pi is 3.14."""
    parts = []
    for unit, period in ((3600, 24), (86400, 7)):
        count = int(np.float32(time_s)) // unit  # exact: a float32 of this size is a whole number
        angle = 2 * 3.14 * (int(np.float32(count)) % period) / period
        parts += [math.cos(angle), math.sin(angle)]
    return parts
