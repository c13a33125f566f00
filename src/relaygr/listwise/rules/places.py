"""What stands at certain positions: items of a class (advertisements), or one pinned item."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int64
from relaygr.listwise.rules.automaton import Automaton, Left, everything


class SlotClass(Automaton):
    """Stateless: the position says it all.

    Args:
        inside: bool [C], who belongs to the class.
        at: bool [length], the positions of the class.
        exclusive: the class stands nowhere else.
    """

    def __init__(self, name: str, length: int, inside: Bool, *, at: Bool, exclusive: bool) -> None:
        super().__init__(name, length)
        self.inside, self.at, self.exclusive = inside, at, exclusive
        self._behind = np.append(np.cumsum(at[::-1])[::-1], 0)  # slots from t on

    def mask(self, state: Any, t: int) -> Bool:
        if self.at[t]:
            return self.inside[None]
        return ~self.inside[None] if self.exclusive else everything(len(self.inside))

    def can_finish(self, state: Any, t: int, free: Bool) -> Bool | None:
        inside = (free & self.inside).sum(axis=1)[:, None]
        slots = int(self._behind[t + 1])
        ok = np.asarray(inside - self.inside >= slots)
        if self.exclusive:
            outside = free.sum(axis=1)[:, None] - inside
            ok = ok & (outside - ~self.inside >= self.length - t - 1 - slots)
        return ok

    def lack(self, free: Bool) -> str:
        slots, inside = int(self.at.sum()), int((free & self.inside).sum())
        if inside < slots:
            return f"it has {inside} candidates for {slots} positions"
        outside = int(free.sum()) - inside
        if self.exclusive and outside < self.length - slots:
            return f"it leaves {outside} candidates for the {self.length - slots} other positions"
        return ""

    def labels(self) -> Int64:
        return self.inside.astype(np.int64)

    def child(self, key: Any, t: int, label: int) -> tuple[()] | None:
        fits = bool(label) if self.at[t] else not (label and self.exclusive)
        return () if fits else None

    def enough(self, key: Any, t: int, left: Left) -> bool:
        slots = int(self._behind[t])
        if left.get(1, 0) < slots:
            return False
        return not self.exclusive or left.get(0, 0) >= self.length - t - slots

    @property
    def limits(self) -> bool:
        return True

    def room(self, key: Any, t: int, slots: int, label: int) -> int:
        inside = int(self._behind[t] - self._behind[t + slots])
        if not label:
            return slots - inside
        return inside if self.exclusive else slots

    def urge(self, key: Any, t: int, label: int, left: Left) -> float:
        if not label or self.at[t]:
            return 0.0
        return -int(self._behind[t]) / max(left.get(1, 0), 1)


class PinnedItem(Automaton):
    """Stateless: one candidate stands at one position and nowhere else.

    Args:
        item: for messages.
        column: of the candidate; -1 if it is not there or not eligible, which nothing satisfies.
        columns: C.
        position: below `length`; beyond it the candidate is kept for later.
    """

    def __init__(
        self,
        name: str,
        length: int,
        *,
        item: int,
        column: int,
        columns: int,
        position: int,
        order: int | None = None,
        price: float = 0.0,
    ) -> None:
        super().__init__(name, length, order, price)
        self.item, self.column, self.position = item, column, position
        self._only = np.zeros((1, columns), dtype=bool)
        self._only[0, column if column >= 0 else slice(0)] = True

    def mask(self, state: Any, t: int) -> Bool:
        return self._only if t == self.position else ~self._only

    def can_finish(self, state: Any, t: int, free: Bool) -> Bool | None:
        if not t < self.position < self.length:
            return None
        return np.full((1, free.shape[1]), self.column >= 0)

    def violation(self, state: Any, t: int) -> Float64:
        """1 where another stands at its position."""
        return (~self._only if t == self.position else np.zeros(self._only.shape)).astype(np.float64)

    def crowd(self, within: Bool) -> int:
        return int((within & self._only[0]).sum())

    def lack(self, free: Bool) -> str:
        if self.column < 0 and self.position < self.length:
            return f"item {self.item} is not an eligible candidate"
        return ""

    def labels(self) -> Int64:
        labels: Int64 = self._only[0].astype(np.int64)
        return labels

    def child(self, key: Any, t: int, label: int) -> tuple[()] | None:
        return () if bool(label) == (t == self.position) else None

    def enough(self, key: Any, t: int, left: Left) -> bool:
        return not t <= self.position < self.length or left.get(1, 0) > 0
