"""Blocked pairs: of two items, or of two values of an attribute, at most one is in the feed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from relaygr.listwise.arrays import Bool, Int64
from relaygr.listwise.rules.automaton import Automaton


class BlockedPairs(Automaton):
    """State: the candidates that are out because of a partner. bool [B, C]

    Values of candidates that matter are known by their place among all such, from 0; memory is linear in
    pairs and candidates.

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
        gone = np.isin(pairs, shown)
        banned = np.concatenate([pairs[gone[:, 0], 1], pairs[gone[:, 1], 0]])
        self._start: Bool = np.isin(values, banned)[None]
        live = pairs[np.isin(pairs, values).all(axis=1)]
        known = np.unique(np.concatenate([live.reshape(-1), values[self._start[0]]]))
        self._known = len(known)
        # Row 0 is of candidates in no pair; row 1 + k of those that hold the value known[k].
        self._row: Int64 = np.zeros(len(values), dtype=np.int64)
        if len(known):
            place = np.searchsorted(known, values).clip(max=len(known) - 1)
            self._row = np.where(known[place] == values, place + 1, 0)
        left, right = np.searchsorted(known, live.T)
        both = np.unique(np.concatenate([left * len(known) + right, right * len(known) + left]))
        # Of each row: where its partners begin and end in `_tails`.
        heads, self._tails = np.divmod(both, max(len(known), 1))
        self._ends: Int64 = np.searchsorted(heads, np.arange(-1, len(known)), side="right")
        self._begins = np.append(0, self._ends[:-1])
        self._pins = [(p, int(self._row[column])) for p, column in pins if self._row[column]]

    @property
    def idle(self) -> bool:
        """Whether no list can break it."""
        return not (len(self._tails) or self._start.any())

    @cached_property
    def _partners(self) -> list[frozenset[int]]:
        spans = zip(self._begins[1:].tolist(), self._ends[1:].tolist(), strict=True)
        return [frozenset(self._tails[begin:end].tolist()) for begin, end in spans]

    def _blocked(self, rows: Int64) -> Bool:
        """Which candidates the partners of `rows` [n] are. [n, C]"""
        out = np.zeros((len(rows), self._known + 1), dtype=bool)
        for at, row in enumerate(rows.tolist()):
            if row:
                out[at, self._tails[self._begins[row] : self._ends[row]] + 1] = True
        return out.take(self._row, axis=1)

    def init(self) -> Bool:
        return self._start

    def mask(self, state: Bool, t: int) -> Bool:
        return ~state

    def gone(self, state: Bool) -> Bool | None:
        return state

    def step(self, state: Bool, t: int, parents: Int64, items: Int64) -> Bool:
        rows = self._row[items]
        banned: Bool = state[parents]
        if rows.any():
            banned |= self._blocked(rows)
        return banned

    def can_finish(self, state: Bool, t: int, free: Bool) -> Bool | None:
        """Partners of what is pinned behind t must stay away."""
        rows = np.array([row for position, row in self._pins if position > t], dtype=np.int64)
        return ~np.logical_or.reduce(self._blocked(rows), axis=0)[None] if len(rows) else None

    def crowd(self, within: Bool) -> int:
        sizes = np.bincount(self._row[within], minlength=self._known + 1)
        sums = np.append(0, np.cumsum(sizes[self._tails + 1]))
        most = np.sort((sums[self._ends] - sums[self._begins])[self._row])[::-1]
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
