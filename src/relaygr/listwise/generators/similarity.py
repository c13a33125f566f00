"""How alike candidates are, to one another and to what was shown last."""

from __future__ import annotations

import numpy as np

from relaygr.listwise.arrays import Float32, Float64
from relaygr.listwise.pool import MISSING
from relaygr.listwise.scene import Scene


def similarity(scene: Scene, carry: int = 0) -> Float64:
    """Symmetric, in [0, 1], unit diagonal, positive semi-definite. float64 [C + n, C + n]

    Behind the candidates come the last n <= `carry` shown items, oldest first. (1 + cosine) / 2 of the
    vectors; without vectors, the share of attributes that are equal (no value equals none).
    """
    shown = scene.ask.shown
    count = 0 if shown is None else min(carry, len(shown))
    if scene.pool.vectors is None:
        return _equal_attributes(scene, count)
    if shown is None or shown.vectors is None or not count:
        return scene.similarity
    recent = unit(shown.vectors[-count:])
    across = recent @ unit(scene.pool.vectors).T
    among = recent @ recent.T
    made = np.empty((len(scene) + count, len(scene) + count))
    made[: len(scene), : len(scene)] = scene.cosine
    made[len(scene) :, : len(scene)] = across
    made[: len(scene), len(scene) :] = across.T
    made[len(scene) :, len(scene) :] = 0.5 * (among + among.T)
    np.fill_diagonal(made, 1.0)
    return 0.5 * (1.0 + np.clip(made, -1.0, 1.0))


def unit(vectors: Float32) -> Float64:
    """Vectors [n, Dv] in float64, of length 1 to its precision."""
    exact = vectors.astype(np.float64)
    exact /= np.sqrt(np.einsum("nd,nd->n", exact, exact))[:, None]
    return exact


def _equal_attributes(scene: Scene, count: int) -> Float64:
    shown, total = scene.ask.shown, np.zeros((len(scene) + count, len(scene) + count))
    for name, values in scene.pool.attributes.items():
        if shown is not None and count:
            unknown = np.full(count, MISSING)
            recent = shown.attributes[name][-count:] if name in shown.attributes else unknown
            values = np.concatenate([values, recent])
        total += (values[:, None] == values) & (values != MISSING)
    total /= max(len(scene.pool.attributes), 1)
    np.fill_diagonal(total, 1.0)
    return total
