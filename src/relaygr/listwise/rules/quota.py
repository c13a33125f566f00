"""Quotas of a class: at least so many by a position, at most so many in all."""

from __future__ import annotations

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int32, Int64
from relaygr.listwise.rules.automaton import Automaton, Left


class MinimumQuota(Automaton):
    """State: items of the class so far. int32 [B]

    Args:
        inside: bool [C], who belongs to the class.
        count: how many the list needs.
        within: positions that count, 1..length.
        start: how many were shown before and count.
    """

    def __init__(
        self,
        name: str,
        length: int,
        inside: Bool,
        *,
        count: int,
        within: int,
        start: int = 0,
        order: int | None = None,
        price: float = 0.0,
    ) -> None:
        super().__init__(name, length, order, price)
        self.inside, self.count, self.within, self.start = inside, count, within, start

    def init(self) -> Int32:
        return np.array([self.start], dtype=np.int32)

    def mask(self, state: Int32, t: int) -> Bool:
        """Once every position is needed, only the class."""
        need = self.count - state
        forced = (
            (need > 0) & (need >= self.within - t) if t < self.within else np.zeros(len(state), dtype=bool)
        )
        return self.inside | ~forced[:, None]

    def step(self, state: Int32, t: int, parents: Int64, items: Int64) -> Int32:
        count = state[parents]
        return count + self.inside[items].astype(np.int32) if t < self.within else count

    def can_finish(self, state: Int32, t: int, free: Bool) -> Bool | None:
        if t >= self.within:
            return None
        left = (free & self.inside).sum(axis=1)
        most = np.minimum(self.within - t - 1, left)[:, None]  # without the class at t
        with_it = np.minimum(self.within - t - 1, left - 1)[:, None] + 1
        need = (self.count - state)[:, None]
        enough: Bool = np.where(self.inside, with_it, most) >= need
        return enough

    def final_ok(self, state: Int32) -> Bool:
        return state >= self.count

    def breaks(self, state: Int32, t: int) -> Bool:
        broken: Bool = self.violation(state, t) > 0
        return broken

    def violation(self, state: Int32, t: int) -> Float64:
        """What is missing, at the last position that counts."""
        if t != self.within - 1:
            return np.zeros((1, len(self.inside)))
        return np.maximum(self.count - state[:, None] - self.inside, 0).astype(np.float64)

    def lack(self, free: Bool) -> str:
        need, left = self.count - self.start, int((free & self.inside).sum())
        if need > min(left, self.within):
            return f"it needs {need} of {left} candidates within {self.within} positions"
        return ""

    def labels(self) -> Int64:
        return self.inside.astype(np.int64)

    def key(self, state: Int32, beam: int, t: int) -> int:
        return max(self.count - int(state[beam]), 0)

    def child(self, key: int, t: int, label: int) -> int | None:
        """The key is what is still needed."""
        if t >= self.within:
            return key
        need = max(key - label, 0)
        return need if need <= self.within - t - 1 else None

    def enough(self, key: int, t: int, left: Left) -> bool:
        return key <= left.get(1, 0)

    def done(self, key: int) -> bool:
        return key == 0

    def urge(self, key: int, t: int, label: int, left: Left) -> float:
        if not key or label != 1:
            return 0.0
        return key / max(min(left.get(1, 0), self.within - t), 1)


class MaximumQuota(Automaton):
    """State: items of the class so far. int32 [B]

    Args:
        inside: bool [C], who belongs to the class.
        count: how many the list may hold.
        start: how many were shown before and count.
        pins: (position, column) of candidates that must stand somewhere.
    """

    def __init__(
        self,
        name: str,
        length: int,
        inside: Bool,
        *,
        count: int,
        start: int = 0,
        pins: tuple[tuple[int, int], ...] = (),
        order: int | None = None,
        price: float = 0.0,
    ) -> None:
        super().__init__(name, length, order, price)
        self.inside, self.count, self.start = inside, count, start
        self._pins = [position for position, column in pins if inside[column]]

    @property
    def idle(self) -> bool:
        """Whether no list can break it."""
        return self.start + int(self.inside.sum()) <= self.count

    def init(self) -> Int32:
        return np.array([self.start], dtype=np.int32)

    def mask(self, state: Int32, t: int) -> Bool:
        return ~(self.inside & (state >= self.count)[:, None])

    def gone(self, state: Int32) -> Bool | None:
        return self.inside & (state >= self.count)[:, None]

    def step(self, state: Int32, t: int, parents: Int64, items: Int64) -> Int32:
        count: Int32 = state[parents] + self.inside[items].astype(np.int32)
        return count

    def can_finish(self, state: Int32, t: int, free: Bool) -> Bool | None:
        slots = self.length - t - 1
        inside = (free & self.inside).sum(axis=1)
        outside = free.sum(axis=1) - inside
        pinned = sum(position > t for position in self._pins)
        if not pinned and bool((outside > slots).all()):
            return None
        spare = np.maximum(self.count - state, 0)  # of the class, before t; the feed may hold too many
        beside = outside - 1 + np.minimum(inside, spare)
        taken = outside + np.minimum(inside - 1, spare - 1)
        ok_outside = (beside >= slots) & (spare >= pinned)
        ok_inside = (taken >= slots) & (spare - 1 >= pinned)
        ok: Bool = np.where(self.inside, ok_inside[:, None], ok_outside[:, None])
        return ok

    def crowd(self, within: Bool) -> int:
        return int((within & self.inside).sum())

    def lack(self, free: Bool) -> str:
        inside = int((free & self.inside).sum())
        outside = int(free.sum()) - inside
        room = max(self.count - self.start, 0)
        if outside + min(inside, room) < self.length:
            return f"it admits {room} of {inside} candidates, and there are {outside} others"
        return ""

    def labels(self) -> Int64:
        return self.inside.astype(np.int64)

    def key(self, state: Int32, beam: int, t: int) -> int:
        return max(self.count - int(state[beam]), 0)

    def child(self, key: int, t: int, label: int) -> int | None:
        """The key is how many more may come."""
        return key if not label else key - 1 if key else None

    def spent(self, key: int) -> tuple[int, ...]:
        return () if key else (1,)

    def enough(self, key: int, t: int, left: Left) -> bool:
        return left.get(0, 0) + min(left.get(1, 0), key) >= self.length - t

    @property
    def limits(self) -> bool:
        return True

    def room(self, key: int, t: int, slots: int, label: int) -> int:
        return min(key, slots) if label else slots

    def urge(self, key: int, t: int, label: int, left: Left) -> float:
        return -1 / (1 + key) if label else 0.0
