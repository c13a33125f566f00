"""How alike candidates are, to one another and to what was shown last."""

from __future__ import annotations

import numpy as np

from relaygr.listwise.arrays import Float32, Float64, Int64
from relaygr.listwise.pool import MISSING
from relaygr.listwise.scene import Scene

_ALL = 256  # candidates; of more, only the rows that are asked for are made


class Similarities:
    """Rows of `similarity`, with the last `carry` shown items behind the candidates.

    A list asks for one row a pick, so that of many candidates a table of all pairs would cost more than the
    list, and more than the time of a request. Rows are those of the table but for the last bits.
    """

    def __init__(self, scene: Scene, carry: int) -> None:
        self._table: Float64 | None = None
        if len(scene) <= _ALL:
            self._table = similarity(scene, carry)
            self._count = len(self._table)
            return
        shown = scene.ask.shown
        count = 0 if shown is None else min(carry, len(shown))
        self._vectors, self._columns = None, list[Int64]()
        if scene.pool.vectors is None:
            self._columns = [
                _with_shown(scene, name, values, count) for name, values in scene.pool.attributes.items()
            ]
        elif shown is None or shown.vectors is None or not count:
            count, self._vectors = 0, scene.unit
        else:
            self._vectors = np.concatenate([scene.unit, unit(shown.vectors[-count:])])
        self._count = len(scene) + count

    def __len__(self) -> int:
        """Candidates and shown items."""
        return self._count

    def row(self, item: int) -> Float64:
        """Of one candidate or shown item to all. [C + n]"""
        if self._table is not None:
            row: Float64 = self._table[item]
            return row
        if self._vectors is not None:
            made: Float64 = 0.5 * (1.0 + np.clip(self._vectors @ self._vectors[item], -1.0, 1.0))
        else:
            made = np.zeros(self._count)
            for values in self._columns:
                made += (values == values[item]) & (values != MISSING)
            made /= max(len(self._columns), 1)
        made[item] = 1.0
        return made


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
    total = np.zeros((len(scene) + count, len(scene) + count))
    for name, values in scene.pool.attributes.items():
        values = _with_shown(scene, name, values, count)
        total += (values[:, None] == values) & (values != MISSING)
    total /= max(len(scene.pool.attributes), 1)
    np.fill_diagonal(total, 1.0)
    return total


def _with_shown(scene: Scene, name: str, values: Int64, count: int) -> Int64:
    """An attribute of the candidates and of the last `count` shown items."""
    shown = scene.ask.shown
    if shown is None or not count:
        return values
    recent = shown.attributes[name][-count:] if name in shown.attributes else np.full(count, MISSING)
    return np.concatenate([values, recent])
