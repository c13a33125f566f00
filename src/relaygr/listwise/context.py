"""The context of the picks so far, kept up to date pick by pick for all beams and candidates.

A pick costs one row of cosines, one comparison an attribute and one addition a beam, whatever the length of
the list: a ring of the last picks' cosine rows, counters and last positions, one number a candidate each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.listwise.arrays import Bool, Float32, Float64, Int64
from relaygr.listwise.features import Feature, FeatureTable, Kind
from relaygr.listwise.pool import MISSING, Pool, Shown, natural
from relaygr.listwise.scene import Scene, unit

NEVER = -np.inf


@dataclass(frozen=True, slots=True)
class State:
    """What B partial lists of length t leave behind; replaced by each pick.

    Attributes:
        ring: float32 [B, window, C], cosines to the last picks; pick number n is in row n % window.
        filled: rows of the ring that hold a pick.
        counts: float32 [B, counted attributes, C].
        last: float32 [B, dated attributes, C], position of the last pick with the candidate's value.
        watch: float64 [B], sum of the watch head.
    """

    ring: Float32
    filled: int
    counts: Float32
    last: Float32
    watch: Float64


class Context:
    """The tables of one request, and the rows that all its lists share.

    Args:
        features: which rows there are.
        scene: candidates, shown items, slots.
        watch_head: what `watch` sums up.

    Raises:
        RequestError: a feature needs an attribute, vectors or a slot type that the request lacks.
    """

    def __init__(self, features: FeatureTable, scene: Scene, watch_head: str | None = None) -> None:
        self.features, self._scene = features, scene
        pool, shown = scene.pool, scene.ask.shown
        self._shown = 0 if shown is None else len(shown)
        self._needs_vectors = features.has(Kind.SIMILARITY)
        check_inputs(features, pool, shown)
        self.watch_items = np.zeros(len(pool))  # [C]
        self.watch_before = 0.0
        if watch_head is not None:
            at = [head.name for head in pool.heads].index(watch_head)
            column = np.ascontiguousarray(pool.outputs[:, at], dtype=np.float64)
            self.watch_items = natural(pool.heads[at : at + 1], column[None])[0]
            if shown is not None and shown.watch is not None:
                self.watch_before = float(shown.watch.sum())
        self.before = before_list(features, pool, shown)
        still = [self._still(features.features[at]) for at in features.still]
        self.still = np.array(still).reshape(len(still), scene.length)  # [rows `features.still`, length]

    def _still(self, feature: Feature) -> Float64:
        """A row that is one number for all candidates and lists at each position. [length]"""
        ask, positions = self._scene.ask, np.arange(self._scene.length)
        match feature.kind:
            case Kind.POSITION:
                return positions.astype(np.float64) / ask.length
            case Kind.SESSION:
                seen: Float64 = np.log1p(ask.consumed + self._shown + positions)
                return seen
            case Kind.PAGE:
                return np.full(len(positions), 0.0 if ask.shown is None else float(ask.shown.page))
            case _:
                if not ask.slots:
                    return np.zeros(len(positions))
                types = np.array(ask.slots, dtype=np.int64)[: len(positions)]
                return np.equal(types, feature.number).astype(np.float64)

    def start(self) -> State:
        """One empty list behind what was shown."""
        self._tables()
        features, before, window = self.features, self.before, self.features.window
        ring = np.zeros((1, window, len(self._scene)), dtype=np.float32)
        filled = 0
        if self._needs_vectors:
            filled = len(before.cosines)
            for at in range(filled):
                ring[0, (self._shown - filled + at) % window] = before.cosines[at]
        counts = [before.counts[name] for name in features.counted]
        last = [before.last[name] for name in features.dated]
        empty = np.zeros((0, len(self._scene)))
        return State(
            ring,
            filled,
            np.array(counts or empty, dtype=np.float32)[None],
            np.array(last or empty, dtype=np.float32)[None],
            np.full(1, self.watch_before),
        )

    def _tables(self) -> None:
        pool, features = self._scene.pool, self.features
        C = len(pool)
        self._cosine = self._scene.cosine.astype(np.float32) if self._needs_vectors else None  # [C, C]
        same = {
            name: same_values(pool.attributes[name], pool.attributes[name]) for name in features.attributes
        }
        empty = np.zeros((C, 0, C), dtype=bool)
        stack = [same[name] for name in features.counted]
        self._counted = np.stack(stack, axis=1).astype(np.float32) if stack else empty.astype(np.float32)
        stack = [same[name] for name in features.dated]
        self._dated = np.stack(stack, axis=1) if stack else empty  # [C, dated, C]
        moving = [features.features[at] for at in features.moving]
        # Of each similarity row, whether it is the largest; the others are means.
        self._similar = [one.argument == "max" for one in moving if one.kind is Kind.SIMILARITY]
        self._watched = any(one.kind is Kind.WATCH for one in moving)
        numbers = [one.number for one in moving if one.kind is Kind.VECTOR]
        self._vector_rows = np.zeros((0, C), dtype=np.float32)  # [vector rows, C]
        if numbers and pool.vectors is not None:
            self._vector_rows = pool.vectors[:, numbers].T

    def step(self, state: State, t: int, parents: Int64, items: Int64) -> State:
        """Lists `parents` [B'], each with `items` [B'] at position t."""
        ring, filled = state.ring, state.filled
        if self._cosine is not None:
            ring = ring[parents]
            ring[:, (self._shown + t) % self.features.window] = self._cosine[items]
            filled = min(filled + 1, self.features.window)
        counts = state.counts[parents] + self._counted[items]
        last = np.where(self._dated[items], np.float32(t), state.last[parents])
        return State(ring, filled, counts, last, state.watch[parents] + self.watch_items[items])

    def rows(self, state: State, t: int, out: Float32) -> None:
        """Write the rows `features.moving` of all candidates at position t to `out` float32 [B, rows, C]."""
        at, features = 0, self.features
        for largest in self._similar:
            if not state.filled:
                out[:, at] = 0.0
            elif largest:
                np.maximum.reduce(state.ring[:, : state.filled], axis=1, out=out[:, at])
            else:
                np.add.reduce(state.ring[:, : state.filled], axis=1, out=out[:, at])
                out[:, at] *= np.float32(1.0 / state.filled)
            at += 1
        if features.counted:
            out[:, at : at + len(features.counted)] = state.counts
            at += len(features.counted)
        if features.dated:
            block = out[:, at : at + len(features.dated)]
            np.subtract(np.float32(t), state.last, out=block)
            np.reciprocal(block, out=block)
            at += len(features.dated)
        if self._watched:
            out[:, at] = np.log1p(state.watch)[:, None]
            at += 1
        if len(self._vector_rows):
            out[:, at:] = self._vector_rows


@dataclass(frozen=True, slots=True)
class Before:
    """What shown items leave behind for each candidate.

    Attributes:
        cosines: float64 [n, C] to the last n = min(window, shown) items, oldest first.
        counts: attribute -> float64 [C], shown items with the candidate's value.
        last: attribute -> float64 [C], position of the last of them, up to -1; -inf if there is none.
    """

    cosines: Float64
    counts: Mapping[str, Float64]
    last: Mapping[str, Float64]


def before_list(features: FeatureTable, pool: Pool, shown: Shown | None) -> Before:
    """As `Before`, for the candidates of a pool."""
    C = len(pool)
    if shown is None or not len(shown):
        zeroes, never = np.zeros(C), np.full(C, NEVER)
        names = features.attributes
        return Before(np.zeros((0, C)), dict.fromkeys(names, zeroes), dict.fromkeys(names, never))
    cosines = np.zeros((0, C))
    if features.has(Kind.SIMILARITY) and pool.vectors is not None and shown.vectors is not None:
        cosines = unit(shown.vectors[-features.window :]) @ unit(pool.vectors).T
    counts, last = dict[str, Float64](), dict[str, Float64]()
    positions = np.arange(-len(shown), 0, dtype=np.float64)[:, None]
    for name in features.attributes:
        same = same_values(shown.attributes[name], pool.attributes[name])  # [n, C]
        counts[name] = same.sum(0).astype(np.float64)
        last[name] = np.where(same, positions, NEVER).max(0)
    return Before(cosines, counts, last)


def check_inputs(features: FeatureTable, pool: Pool, shown: Shown | None) -> None:
    """Raise RequestError naming what features need and a request lacks."""
    sides: list[tuple[str, Pool | Shown]] = [("", pool)]
    if shown is not None and len(shown):
        sides.append(("shown.", shown))
    for prefix, side in sides:
        for name in features.attributes:
            if name not in side.attributes:
                raise RequestError(f"{prefix}attributes", f"lack {name!r}, which the step model knows")
        wanted = features.has(Kind.SIMILARITY) or (not prefix and features.has(Kind.VECTOR))
        if wanted and side.vectors is None:
            raise RequestError(f"{prefix}vectors", "are needed by the step model, and there are none")
    if shown is not None and pool.vectors is not None and shown.vectors is not None and len(shown):
        widths = pool.vectors.shape[1], shown.vectors.shape[1]
        if widths[0] != widths[1]:
            raise RequestError("shown.vectors", f"have {widths[1]} components, candidates {widths[0]}")
    for one in features.features:
        if one.kind is Kind.VECTOR and pool.vectors is not None and one.number >= pool.vectors.shape[1]:
            raise RequestError("vectors", f"have {pool.vectors.shape[1]} components; {one.number} is wanted")


def same_values(rows: Int64, columns: Int64) -> Bool:
    """Which values are equal; a missing one is equal to none. bool [rows, columns]"""
    same: Bool = (rows[:, None] == columns[None, :]) & (rows != MISSING)[:, None]
    return same
