"""Who was not visited twice for longest leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from relaygr.cache.policies.memory import Memory
from relaygr.cache.policies.order import Ordered
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policy import K, Victim, Weight


class _Last(NamedTuple):
    """The last two visits, 0 for none."""

    second: int = 0
    first: int = 0


class Lru2(Ordered[K]):
    """By the last visit but one; those without one leave first, the oldest of them before the others.

    The visits of entries that left stay known, for `ghost_entries` of them.
    Source: O'Neil, O'Neil and Weikum 1993, "The LRU-K page replacement algorithm".
    """

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._visits: Memory[K, _Last] = Memory(settings.ghost_entries)
        self._now = 0

    def insert(self, key: K, weight: Weight) -> None:
        if key not in self._order:
            last = self._visits.get(key) or _Last()
            self._visits.came(key, last)
            self._order.place(key, last.second)

    def touch(self, key: K) -> None:
        self._now += 1
        last = _Last((self._visits.get(key) or _Last()).first, self._now)
        self._visits.set(key, last)
        if key in self._order:
            self._order.place(key, last.second)

    def remove(self, key: K) -> None:
        self._order.remove(key)
        self._visits.left(key)

    def remembered(self) -> Iterator[K]:
        return self._visits.gone()

    def forget(self, key: K) -> None:
        if key in self._order:
            self._order.remove(key)
        self._visits.forget(key)

    def evict(self) -> Victim[K] | None:
        key = self._order.pop()
        if key is None:
            return None
        self._visits.left(key)
        return Victim(key)
