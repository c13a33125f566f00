"""The context of whole lists, recomputed: what evaluation and explanation read."""

from __future__ import annotations

import numpy as np

from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.context import NEVER, Context
from relaygr.listwise.features import Kind
from relaygr.listwise.pool import MISSING
from relaygr.listwise.scene import Scene


class ListContext:
    """The context of whole lists at once, float64: what evaluation and explanation read.

    Nothing of it is incremental: at each position it looks back over the list.
    """

    def __init__(self, context: Context, scene: Scene) -> None:
        self._context, self._scene = context, scene

    def rows(self, picks: Int32) -> Float64:
        """The context of each pick. picks int32 [G, L] -> [G, F, L]"""
        G, L = picks.shape
        context, pool = self._context, self._scene.pool
        out = np.empty((G, len(context.features), L))
        positions = np.arange(L)
        earlier = positions[:, None] > positions[None, :]  # [t, r]
        same = {}
        for name in context.features.attributes:
            values = pool.attributes[name][picks]  # [G, L]
            equal = (values[:, :, None] == values[:, None, :]) & (values != MISSING)[:, :, None]
            same[name] = equal & earlier
        similar = self._similarities(picks) if context.features.has(Kind.SIMILARITY) else {}
        out[:, context.features.still] = context.still[:, :L]
        for at in context.features.moving:
            one = context.features.features[at]
            match one.kind:
                case Kind.SIMILARITY:
                    out[:, at] = similar[one.argument]
                case Kind.COUNT:
                    out[:, at] = context.before.counts[one.argument][picks] + same[one.argument].sum(2)
                case Kind.RECENCY:
                    inside = np.where(same[one.argument], positions, NEVER).max(2)
                    last = np.maximum(inside, context.before.last[one.argument][picks])
                    out[:, at] = 1.0 / (positions - last)
                case Kind.WATCH:
                    items = context.watch_items[picks]
                    sums = np.cumsum(np.insert(items, 0, context.watch_before, axis=1), axis=1)
                    out[:, at] = np.log1p(sums[:, :-1])
                case _:
                    assert pool.vectors is not None
                    out[:, at] = pool.vectors[picks, one.number]
        return out

    def _similarities(self, picks: Int32) -> dict[str, Float64]:
        """Largest and mean cosine of each pick to the `window` before it. [G, L] each"""
        L = picks.shape[1]
        window, before = self._context.features.window, self._context.before.cosines
        vectors = self._scene.unit[picks]  # [G, L, Dv]
        inside = vectors @ vectors.transpose(0, 2, 1)  # [G, t, r]
        line = np.concatenate([before.T[picks], inside], axis=2)  # [G, t, n + r]
        n = len(before)
        places = n + np.arange(L)[:, None] - np.arange(1, window + 1)[None, :]  # [L, window]
        there = places >= 0
        rows = np.arange(L)[:, None]
        looked = line[:, rows, np.maximum(places, 0)]  # [G, L, window]
        number = there.sum(1)
        largest = np.where(there, looked, -np.inf).max(2)
        mean = np.where(there, looked, 0.0).sum(2) / np.maximum(number, 1)
        return {"max": np.where(number > 0, largest, 0.0), "mean": mean}
