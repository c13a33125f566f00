"""Blocked pairs: of two items, or of two values of an attribute, at most one is in the feed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaygr.listwise.arrays import Bool, Int64
from relaygr.listwise.rules.automaton import Automaton


class BlockedPairs(Automaton):
    """State: the candidates that are out because of a partner. bool [B, C]

    Args:
        values: int64 [C], ids or attribute values.
        shown: int64 [S], of what was shown.
        pairs: int64 [P, 2] of values, P > 0; every value is a candidate's or was shown.
        pins: (position, column) of candidates that must stand somewhere.
    """

    def __init__(
        self,
        name: str,
        length: int,
        values: Int64,
        shown: Int64,
        *,
        pairs: Int64,
        pins: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__(name, length)
        known = np.unique(pairs)
        place = np.searchsorted(known, values).clip(max=len(known) - 1)
        hit: Bool = np.equal(known[place], values)
        # Row 0 is of candidates in no pair; row 1 + k of those that hold the value known[k].
        self._row = np.where(hit, place + 1, 0)
        left, right = np.searchsorted(known, pairs.T)
        partners = np.zeros((len(known), len(known)), dtype=bool)
        partners[left, right] = partners[right, left] = True
        self._blocks = np.zeros((len(known) + 1, len(values)), dtype=bool)
        self._blocks[1:] = partners[:, place] & hit
        gone = np.flatnonzero(np.isin(known, shown))
        banned: Bool = np.logical_or.reduce(partners[gone], axis=0)[place]
        self._start: Bool = (banned & hit)[None]
        self._partners = [frozenset(np.flatnonzero(row).tolist()) for row in partners]
        self._pins = [(position, int(self._row[column])) for position, column in pins if hit[column]]

    @property
    def idle(self) -> bool:
        """Whether no list can break it."""
        return not (self._blocks.any() or self._start.any())

    def init(self) -> Bool:
        return self._start

    def mask(self, state: Bool, t: int) -> Bool:
        return ~state

    def gone(self, state: Bool) -> Bool | None:
        return state

    def step(self, state: Bool, t: int, parents: Int64, items: Int64) -> Bool:
        banned: Bool = state[parents] | self._blocks[self._row[items]]
        return banned

    def can_finish(self, state: Bool, t: int, free: Bool) -> Bool | None:
        """Partners of what is pinned behind t must stay away."""
        rows = [row for position, row in self._pins if position > t]
        return ~np.logical_or.reduce(self._blocks[rows], axis=0)[None] if rows else None

    def crowd(self, within: Bool) -> int:
        most = np.sort((self._blocks & within)[self._row].sum(axis=1))[::-1]
        return int(most[: self.length].sum()) + int((self._start[0] & within).sum())

    def labels(self) -> Int64:
        return self._row - 1

    def key(self, state: Bool, beam: int, t: int) -> frozenset[int]:
        """The values that are out."""
        return frozenset(np.unique(self._row[state[beam]] - 1).tolist())

    def spent(self, key: frozenset[int]) -> frozenset[int]:
        return key

    def child(self, key: frozenset[int], t: int, label: int) -> frozenset[int] | None:
        if label < 0:
            return key
        if label in key:
            return None
        return key | self._partners[label]
