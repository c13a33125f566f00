"""The `relay` variant and the transformer's tokens and head."""

from __future__ import annotations

import math

import numpy as np

from formulas import stu
from formulas.maths import Arrays, Row, hash_row, linear, norm, stacked, swish_stack
from relaygr.models.config import RankerConfig
from relaygr.models.hstu import HstuConfig

NO_GAP = 64


def gap_row(gap: int) -> int:
    return min(int(4 * math.log(1 + max(gap, 0) / 60)), 63)


def score(p: Arrays, c: HstuConfig, row: Row) -> np.ndarray:
    """Logits [m, tasks]."""
    x = tokens(p, c, row)
    slots, m = len(row.contextual), len(row.candidates)
    n, history = len(x), len(x) - m

    def time_bias(y: int) -> np.ndarray:
        bias = np.zeros((c.num_heads, n, n))
        for t, query in enumerate(row.queries):
            ages = [NO_GAP] * slots + [gap_row(query - time) for time in row.times]
            bias[:, history + t, :history] = p[f"layers.{y}.time_bias"][ages].T
        return bias

    return head(p, stu.layers(p, c, x, m, time_bias if c.score_time_bias else None)[history:], c, row)


def tokens(p: Arrays, c: RankerConfig, row: Row) -> np.ndarray:
    """Slots, events and candidates [n, D]."""
    slots, h = len(row.contextual), len(row.items)
    x = []
    for s, value in enumerate(row.contextual):
        looked_up = _lookup(p, c, value, (1 + s) * c.item_hashes)
        x.append(linear(p, f"tokens.slots.{s}", looked_up) + _position(p, c, s))
    for e in range(h):
        action = sum(
            (p["tokens.action"][b] for b in range(len(c.action_bits)) if row.actions[e] >> b & 1),
            np.zeros(c.hidden_size),
        )
        gap = NO_GAP if e == 0 else gap_row(row.times[e] - row.times[e - 1])
        x.append(item(p, c, row.items[e]) + action + _place(p, c, slots + e, row.times[e], gap, row.offset))
    for candidate, query in zip(row.candidates, row.queries, strict=True):
        gap = gap_row(query - row.times[-1]) if h else NO_GAP
        place = _place(p, c, slots + h, query, gap, row.offset)
        if c.last_seen:
            ages = [query - t for i, t in zip(row.items, row.times, strict=True) if i == candidate]
            place = place + p["tokens.last_seen"][gap_row(ages[-1]) if ages else NO_GAP]
        x.append(item(p, c, candidate) + p["tokens.target_action"] + place)
    return stacked(x, c.hidden_size)


def head(p: Arrays, rows: np.ndarray, c: RankerConfig, row: Row) -> np.ndarray:
    rows = norm(p, "head.post_norm", rows, 1e-5)
    vectors = swish_stack(p, "head.item", stacked([item(p, c, i) for i in row.candidates], c.hidden_size))
    return swish_stack(p, "head.predict", rows * norm(p, "head.item_norm", vectors, 1e-5))


def item(p: Arrays, c: RankerConfig, value: int) -> np.ndarray:
    token = swish_stack(p, "tokens.item.stack", _lookup(p, c, value, 0))
    return norm(p, "tokens.item.norm", token, 1e-5)


def _lookup(p: Arrays, c: RankerConfig, value: int, first_seed: int) -> np.ndarray:
    seeds = range(first_seed, first_seed + c.item_hashes)
    return sum(p["tokens.item.table.weight"][hash_row(value, c.item_rows, s)] for s in seeds)


def _position(p: Arrays, c: RankerConfig, place: int) -> np.ndarray | float:
    return p["tokens.position"][min(place, c.position_buckets - 1)] if c.position_buckets else 0.0


def _place(p: Arrays, c: RankerConfig, place: int, time_s: int, gap: int, offset: int) -> np.ndarray:
    local = time_s + offset
    day = 2 * math.pi * (local % 86400) / 86400
    week = 2 * math.pi * ((local + 4 * 86400) % 604800) / 604800
    clock = np.array([math.sin(day), math.cos(day), math.sin(week), math.cos(week)])
    return _position(p, c, place) + p["tokens.gap"][gap] + clock @ p["tokens.clock"]
