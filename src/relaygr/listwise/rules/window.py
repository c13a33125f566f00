"""Author gaps and topic caps: at most x items of one value in any w consecutive positions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from relaygr.listwise.arrays import Bool, Int32, Int64
from relaygr.listwise.pool import MISSING
from relaygr.listwise.rules.automaton import Automaton, Left

NEVER = -(1 << 30)  # the position of a placement that has not happened
WHOLE = 1 << 29  # a window that nothing leaves


class WindowCap(Automaton):
    """State: the positions of the last `most` placements of each value, oldest first. int32 [B, A + 1, most]

    Values that cannot reach the cap share the code A, at which nothing is ever placed.

    Args:
        codes: int64 [C], attribute values; `MISSING` is under no cap.
        shown: int64 [S], of what was shown.
        eligible: bool [C].
        most: items of one value in a window.
        window: consecutive positions; None for the whole feed.
        values: the values under the cap; empty for all.
        pins: (position, column) of candidates that must stand somewhere, ascending.
    """

    def __init__(
        self,
        name: str,
        length: int,
        codes: Int64,
        shown: Int64,
        eligible: Bool,
        *,
        most: int,
        window: int | None,
        values: Sequence[int] = (),
        pins: Sequence[tuple[int, int]] = (),
        order: int | None = None,
        price: float = 0.0,
    ) -> None:
        super().__init__(name, length, order, price)
        whole = window is None or window >= length + len(shown)
        self.most, self.window = most, WHOLE if whole or window is None else window
        recent = shown[max(len(shown) - self.window + 1, 0) :]
        found, at = np.unique(np.concatenate([codes, recent]), return_inverse=True)
        sizes = np.bincount(at, np.concatenate([eligible, np.ones(len(recent))]), len(found))
        live = (sizes > most) & (found != MISSING)
        if values:
            live &= np.isin(found, values)
        self.count = int(live.sum())  # A
        renamed = np.full(len(found), self.count)
        renamed[live] = np.arange(self.count)
        named = renamed[at]
        self.codes: Int64 = named[: len(codes)]
        self._start = self._open(named[len(codes) :])
        self._eligible = eligible
        self._pins = [(p, int(self.codes[c])) for p, c in pins if self.codes[c] < self.count]
        self._columns: Any = None
        # How many candidates could stand one behind another at once if nothing were picked yet.
        left = np.bincount(self.codes[eligible], minlength=self.count + 1)
        room = self.most - (self._start[0, :-1] > NEVER).sum(axis=1)
        self._reserve = int(np.minimum(left[:-1], room).sum()) + int(left[-1])
        self._candidates = int(left.sum())

    @property
    def idle(self) -> bool:
        """Whether no list can break it."""
        return self.count == 0

    def _open(self, shown: Int64) -> Int32:
        last = np.full((1, self.count + 1, self.most), NEVER, dtype=np.int32)
        order = np.argsort(shown, kind="stable")
        codes = shown[order]
        later = np.searchsorted(codes, codes, side="right") - 1 - np.arange(len(codes))  # of the same code
        kept = (codes < self.count) & (later < self.most)
        last[0, codes[kept], self.most - 1 - later[kept]] = order[kept] - len(shown)
        return last

    def init(self) -> Int32:
        return self._start

    def mask(self, state: Int32, t: int) -> Bool:
        allowed: Bool = (state[:, :, 0] <= t - self.window).take(self.codes, axis=1)
        return allowed

    def step(self, state: Int32, t: int, parents: Int64, items: Int64) -> Int32:
        last = state[parents]
        codes = self.codes[items]
        rows = np.flatnonzero(codes < self.count)
        if len(rows):
            codes = codes[rows]
            last[rows, codes, :-1] = last[rows, codes, 1:]
            last[rows, codes, -1] = t
        return last

    def can_finish(self, state: Int32, t: int, free: Bool) -> Bool | None:
        """Counting: for every k, the k positions behind t must find k candidates.

        A value gives at most what is left of it, and at most what its cooldown leaves room for.
        """
        slots = self.length - t - 1
        pins = [(position, code) for position, code in self._pins if t < position < t + self.window]
        if not slots:
            return None
        least = (
            np.count_nonzero(free) if len(free) == 1 else int(free.sum(axis=1).min(initial=self._candidates))
        )
        if not pins and self._reserve - (self._candidates - least) > slots:
            return None  # each candidate that is out, picked or not, takes one at most
        left = self._left(free)
        last = state[:, :-1]
        # Values that can stand right behind t, one item each, and those without a cap.
        ready = ((left[:, :-1] > 0) & (last[:, :, 0] <= t + 1 - self.window)).sum(axis=1) + left[:, -1]
        enough = bool((ready > slots).all())
        if enough and not pins:
            return None
        moved = np.concatenate([last[:, :, 1:], np.full((*last.shape[:2], 1), t, dtype=np.int32)], axis=2)
        ok = np.ones((len(state), self.count + 1), dtype=bool)
        if not enough:
            self._count(ok, left.astype(np.int32)[:, :, None], last, moved, t)
        for position, code in pins:
            ok[:, code] &= moved[:, code, 0] <= position - self.window
        return ok.take(self.codes, axis=1)

    def _left(self, free: Bool) -> Any:
        """How many candidates of each code are in `free` [B, C]. [B, A + 1]"""
        if len(free) == 1:
            return np.bincount(self.codes[free[0]], minlength=self.count + 1)[None]
        if self._columns is None:
            self._columns = np.zeros((len(self.codes), self.count + 1), dtype=np.float32)
            self._columns[np.arange(len(self.codes)), self.codes] = 1
        return free.astype(np.float32) @ self._columns

    def _count(self, ok: Bool, left: Int32, last: Int32, moved: Int32, t: int) -> None:
        """Clear `ok` [B, A + 1] for picks at t behind which k positions find fewer than k candidates.

        `left` [B, A + 1, 1] before the pick; placements [B, A, most] without it and with it.
        """
        slots = self.length - t - 1
        ks = np.arange(1, slots + 1)
        here = np.minimum(self._room(last, t, slots), left[:, :-1])
        there = np.minimum(self._room(moved, t, slots), left[:, :-1] - 1)
        total = here.sum(axis=1, keepdims=True)
        ok[:, :-1] = (total - here + there + np.minimum(left[:, -1:], ks) >= ks).all(axis=2)
        ok[:, -1] = (total + np.minimum(left[:, -1:] - 1, ks) >= ks).all(axis=2)[:, 0]

    def _room(self, last: Int32, t: int, slots: int) -> Int32:
        """How many of a value may stand in the first k positions behind t, for k = 1..slots. [B, A, slots]"""
        earliest = np.maximum(last + self.window, np.arange(t + 1, t + 1 + self.most, dtype=np.int32))
        ends = np.arange(t + 1, t + 1 + slots, dtype=np.int32)
        turns = (ends - earliest[..., None]) // np.int32(self.window) + 1  # [B, A, most, slots]
        room: Int32 = np.maximum(turns, 0).sum(axis=2, dtype=np.int32)
        return room

    def crowd(self, within: Bool) -> int:
        sizes = np.bincount(self.codes[within & self._eligible], minlength=self.count + 1)[:-1]
        reach = min(self.window, self.length + int((self._start > NEVER).sum()))
        full = max(reach - 1, 0) // self.most
        return int(np.sort(sizes)[::-1][:full].sum())

    def lack(self, free: Bool) -> str:
        left = np.bincount(self.codes[free], minlength=self.count + 1)
        room = np.minimum(self._room(self._start[:, :-1], -1, self.length)[0], left[:-1, None]).sum(axis=0)
        room = room + np.minimum(left[-1], np.arange(1, self.length + 1))
        short = np.flatnonzero(room < np.arange(1, self.length + 1))
        if not len(short):
            return ""
        return f"it leaves candidates for {int(room[short[0]])} of the first {int(short[0]) + 1} positions"

    def labels(self) -> Int64:
        return np.where(self.codes < self.count, self.codes, MISSING)

    def key(self, state: Int32, beam: int, t: int) -> tuple[int, ...]:
        """The labels of the last window - 1 positions; over the whole feed, those placed, sorted."""
        codes, turns = np.nonzero(state[beam] > max(t - self.window, NEVER))
        if self.window == WHOLE:
            return tuple(codes.tolist())
        labels = [MISSING] * (self.window - 1)
        for code, position in zip(codes.tolist(), state[beam, codes, turns].tolist(), strict=True):
            labels[position - t] = code
        return tuple(labels)

    def child(self, key: tuple[int, ...], t: int, label: int) -> tuple[int, ...] | None:
        if label == MISSING:
            return key if self.window == WHOLE else (*key[1:], label)
        if key.count(label) >= self.most:
            return None
        return tuple(sorted((*key, label))) if self.window == WHOLE else (*key[1:], label)

    def spent(self, key: tuple[int, ...]) -> Collection[int]:
        return {label for label in key if key.count(label) >= self.most} if self.window == WHOLE else ()

    def enough(self, key: tuple[int, ...], t: int, left: Left) -> bool:
        slots = self.length - t
        fresh = self._fresh(slots)
        total = sum([n if n < fresh else fresh for n in left.values()])
        for label in {*key, MISSING}:
            if label in left:
                n = left[label]
                total += min(n, self.room(key, t, slots, label)) - min(n, fresh)
        return total >= slots

    @property
    def limits(self) -> bool:
        return True

    def room(self, key: tuple[int, ...], t: int, slots: int, label: int) -> int:
        if label == MISSING:
            return slots
        if label not in key:
            return self._fresh(slots)
        if self.window == WHOLE:
            return min(max(self.most - key.count(label), 0), slots)
        # Each of the last `most` placements, or the room of one that has not happened, comes back in turns.
        since = [len(key) - at for at, placed in enumerate(key) if placed == label][-self.most :]
        fresh = self.most - len(since)
        first = [*range(fresh), *(max(self.window - ago, at) for at, ago in enumerate(since, fresh))]
        return sum((slots - 1 - at) // self.window + 1 for at in first if at < slots)

    def _fresh(self, slots: int) -> int:
        """The room of a value that was not placed within a window."""
        turns, rest = divmod(slots, self.window)
        return turns * self.most + min(rest, self.most)

    def urge(self, key: tuple[int, ...], t: int, label: int, left: Left) -> float:
        """The more there are of a value, the sooner: its windows take turns."""
        return left[label] / (2 * self.length) if label in left and label != MISSING else 0.0
