"""The causal transformer, with the tokens and the head of the `relay` variant."""

from __future__ import annotations

import math

import numpy as np

from formulas import relay
from formulas.maths import Arrays, Row, linear, rms_norm, silu, visible
from relaygr.models.transformer import TransformerConfig


def score(p: Arrays, c: TransformerConfig, row: Row) -> np.ndarray:
    """Logits [m, tasks]."""
    x, m = relay.tokens(p, c, row), len(row.candidates)
    history = len(x) - m
    mask = visible(len(row.contextual), len(x), m, window=c.window)
    places = [min(i, history) for i in range(len(x))]
    for y in range(c.num_layers):
        name = f"layers.{y}"
        x = x + _attention(p, c, name, rms_norm(p, f"{name}.attention_norm", x, c.norm_eps), mask, places)
        normed = rms_norm(p, f"{name}.mlp_norm", x, c.norm_eps)
        gate, up = np.split(linear(p, f"{name}.gate_up", normed), 2, axis=1)
        x = x + linear(p, f"{name}.down", silu(gate) * up)
    return relay.head(p, x[history:], c, row)


def _attention(
    p: Arrays, c: TransformerConfig, name: str, x: np.ndarray, mask: np.ndarray, places: list[int]
) -> np.ndarray:
    H, A, E = c.num_heads, c.qk_dim, c.v_dim
    q, k, v = np.split(linear(p, f"{name}.qkv", x), [H * A, 2 * H * A], axis=1)
    seen = np.zeros((len(x), H * E))
    for h in range(H):
        query, key = q[:, h * A : h * A + A], k[:, h * A : h * A + A]
        if c.qk_norm:
            query = rms_norm(p, f"{name}.q_norm", query, c.norm_eps)
            key = rms_norm(p, f"{name}.k_norm", key, c.norm_eps)
        scores = _turned(c, query, places) @ _turned(c, key, places).T / math.sqrt(A)
        weights = np.where(mask, np.exp(scores - scores.max(initial=0)), 0)
        weights = weights / weights.sum(1, keepdims=True)
        seen[:, h * E : h * E + E] = weights @ v[:, h * E : h * E + E]
    return linear(p, f"{name}.output", seen)


def _turned(c: TransformerConfig, x: np.ndarray, places: list[int]) -> np.ndarray:
    """Rotate the pairs (d, d + A/2) by place / theta^(2 d / A)."""
    half = c.qk_dim // 2
    out = np.empty_like(x)
    for i, place in enumerate(places):
        for d in range(half):
            angle = place / c.rope_theta ** (2 * d / c.qk_dim)
            a, b = x[i, d], x[i, d + half]
            out[i, d] = a * math.cos(angle) - b * math.sin(angle)
            out[i, d + half] = b * math.cos(angle) + a * math.sin(angle)
    return out
