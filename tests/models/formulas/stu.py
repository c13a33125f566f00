"""The HSTU layers with every switch, as the layer's formula reads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from formulas.maths import Arrays, linear, norm, plain_norm, silu, visible
from relaygr.models.hstu import HstuConfig

Bias = Callable[[int], np.ndarray]  # of a layer: what is added to its scores, [H, n, n] or [n, n]


def layers(p: Arrays, c: HstuConfig, x: np.ndarray, targets: int, bias: Bias | None = None) -> np.ndarray:
    """Tokens [n, D], the last `targets` of them candidates, through all layers."""
    mask = visible(
        len(c.contextual),
        len(x),
        targets,
        two_way=c.contextual_two_way,
        window=c.window,
        full_tail=c.full_tail,
    )
    for y in range(c.num_layers):
        x = _layer(p, c, f"layers.{y}", x, mask, 0.0 if bias is None else bias(y))
    return x


def _layer(
    p: Arrays, c: HstuConfig, name: str, x: np.ndarray, mask: np.ndarray, bias: np.ndarray | float
) -> np.ndarray:
    switch, n = c.layer, len(x)
    H, A, E = c.num_heads, c.qk_dim, c.v_dim
    affine = switch.input_norm == "affine"
    normed = norm(p, f"{name}.input_norm", x, c.norm_eps) if affine else plain_norm(x, c.norm_eps)
    mixed = linear(p, f"{name}.uvqk", normed)
    u, v, q, k = np.split(mixed, [H * E, 2 * H * E, 2 * H * E + H * A], axis=1)
    if switch.silu_on != "none":
        u = silu(u)
    if switch.silu_on == "uvqk":
        v, q, k = silu(v), silu(q), silu(k)
    alpha = switch.alpha if switch.alpha else 1 / math.sqrt(A)
    added = np.broadcast_to(bias, (H, n, n))
    o = np.zeros((n, H, E))
    for h in range(H):
        key = slice(h * A, h * A + A)
        scores = alpha * (q[:, key] @ k[:, key].T) + added[h]
        o[:, h] = (mask * silu(scores) / c.scaling_seqlen) @ v[:, h * E : h * E + E]
    z = _output_norm(p, c, f"{name}.output_norm", o)
    o = o.reshape(n, H * E)
    parts = {"gate": [u * z], "u_o_y": [u, o, u * z], "u_z_y": [u, z, u * z]}[switch.concat]
    out = linear(p, f"{name}.output", np.concatenate(parts, axis=1))
    return x + out if switch.residual else out


def _output_norm(p: Arrays, c: HstuConfig, name: str, o: np.ndarray) -> np.ndarray:
    """o [n, H, E] -> [n, H E]."""
    n, H, E = o.shape
    if c.layer.output_norm == "group":
        each = np.empty_like(o)
        for h in range(H):
            each[:, h] = plain_norm(o[:, h], c.norm_eps) * p[f"{name}.weight"][h] + p[f"{name}.bias"][h]
        return each.reshape(n, H * E)
    wide = o.reshape(n, H * E)
    affine = c.layer.output_norm == "affine"
    return norm(p, name, wide, c.norm_eps) if affine else plain_norm(wide, c.norm_eps)
