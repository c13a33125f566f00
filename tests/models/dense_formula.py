"""The `relay` ranker in plain numpy float64, from the formulas and the weight file's tensors alone."""

from __future__ import annotations

import math

import numpy as np

from relaygr.models.hstu import HstuConfig

Arrays = dict[str, np.ndarray]


def _ln(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> np.ndarray:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * w + b


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _stack(p: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    hidden = x @ p[f"{name}.first.weight"].T + p[f"{name}.first.bias"]
    hidden = hidden * _sigmoid(_ln(hidden, p[f"{name}.norm.weight"], p[f"{name}.norm.bias"], 1e-5))
    return hidden @ p[f"{name}.second.weight"].T + p[f"{name}.second.bias"]


def hash_row(value: int, rows: int, seed: int) -> int:
    """SplitMix64's finaliser on Python integers."""
    mask = (1 << 64) - 1
    x = (value + seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x ^= x >> 31
    return (x >> 1) % rows


def _lookup(p: Arrays, c: HstuConfig, value: int, first_seed: int) -> np.ndarray:
    seeds = range(first_seed, first_seed + c.item_hashes)
    return sum(p["tokens.item.table.weight"][hash_row(value, c.item_rows, s)] for s in seeds)


def _item(p: Arrays, c: HstuConfig, value: int) -> np.ndarray:
    token = _stack(p, "tokens.item.stack", _lookup(p, c, value, 0))
    return _ln(token, p["tokens.item.norm.weight"], p["tokens.item.norm.bias"], 1e-5)


def _gap_row(gap: int) -> int:
    return min(int(4 * math.log(1 + max(gap, 0) / 60)), 63)


def _place(p: Arrays, c: HstuConfig, position: int, time_s: int, gap_row: int, offset: int) -> np.ndarray:
    local = time_s + offset
    day = 2 * math.pi * (local % 86400) / 86400
    week = 2 * math.pi * ((local + 4 * 86400) % 604800) / 604800
    clock = np.array([math.sin(day), math.cos(day), math.sin(week), math.cos(week)])
    row = p["tokens.position"][min(position, c.position_buckets - 1)] + p["tokens.gap"][gap_row]
    return row + clock @ p["tokens.clock"]


def score(
    p: Arrays,
    c: HstuConfig,
    contextual: list[int],
    items: list[int],
    times: list[int],
    actions: list[int],
    candidates: list[int],
    query_time: int,
    offset: int = 0,
) -> np.ndarray:
    """Logits [m, tasks] of one user, the whole row at once."""
    slots, h, m = len(contextual), len(items), len(candidates)
    x = np.zeros((slots + h + m, c.hidden_size))
    for s, value in enumerate(contextual):
        emb = _lookup(p, c, value, (1 + s) * c.item_hashes)
        x[s] = emb @ p[f"tokens.slots.{s}.weight"].T + p[f"tokens.slots.{s}.bias"] + p["tokens.position"][s]
    for e in range(h):
        action = sum(
            (p["tokens.action"][b] for b in range(len(c.action_bits)) if actions[e] >> b & 1),
            np.zeros(c.hidden_size),
        )
        gap = 64 if e == 0 else _gap_row(times[e] - times[e - 1])
        x[slots + e] = _item(p, c, items[e]) + action + _place(p, c, slots + e, times[e], gap, offset)
    gap = _gap_row(query_time - times[-1]) if h else 64
    for t in range(m):
        place = _place(p, c, slots + h, query_time, gap, offset)
        if c.last_seen:
            seen = [
                query_time - time for item, time in zip(items, times, strict=True) if item == candidates[t]
            ]
            place = place + p["tokens.last_seen"][_gap_row(seen[-1]) if seen else 64]
        x[slots + h + t] = _item(p, c, candidates[t]) + p["tokens.target_action"] + place
    n, C = slots + h + m, slots
    two_way = c.contextual_two_way and C > 0
    end = n - m - C + 1 if two_way else n - m
    ids = [end if i >= n - m else max(i - C + 1, 0) if two_way else i for i in range(n)]
    mask = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            see = i == j or ids[i] > ids[j]
            if c.window and not (c.full_tail and ids[i] >= end - c.full_tail):
                see = see and ids[i] - ids[j] <= c.window
            mask[i, j] = see or (two_way and ids[i] == 0 and ids[j] < end)
    H, A, E = c.num_heads, c.qk_dim, c.v_dim
    ages = [64] * slots + [_gap_row(query_time - t) for t in times]
    for y in range(c.num_layers):
        name = f"layers.{y}"
        normed = _ln(x, p[f"{name}.input_norm.weight"], p[f"{name}.input_norm.bias"], c.norm_eps)
        mixed = normed @ p[f"{name}.uvqk.weight"].T + p[f"{name}.uvqk.bias"]
        u, v = mixed[:, : H * E], mixed[:, H * E : 2 * H * E]
        q, k = mixed[:, 2 * H * E : 2 * H * E + H * A], mixed[:, 2 * H * E + H * A :]
        u = u * _sigmoid(u)
        o = np.zeros((n, H * E))
        for head in range(H):
            a, e = slice(head * A, head * A + A), slice(head * E, head * E + E)
            s = q[:, a] @ k[:, a].T / math.sqrt(A)
            if c.score_time_bias:
                s[slots + h :, : slots + h] += p[f"{name}.time_bias"][ages, head]
            o[:, e] = (mask * s * _sigmoid(s) / c.scaling_seqlen) @ v[:, e]
        z = _ln(o, p[f"{name}.output_norm.weight"], p[f"{name}.output_norm.bias"], c.norm_eps)
        x = x + np.concatenate([u, o, u * z], axis=1) @ p[f"{name}.output.weight"].T
    rows = _ln(x[n - m :], p["head.post_norm.weight"], p["head.post_norm.bias"], 1e-5)
    tokens = np.array([_item(p, c, value) for value in candidates]).reshape(m, c.hidden_size)
    item = _stack(p, "head.item", tokens)
    item = _ln(item, p["head.item_norm.weight"], p["head.item_norm.bias"], 1e-5)
    return _stack(p, "head.predict", rows * item)
