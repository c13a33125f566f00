"""How often keys were visited, those that are not here included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from relaygr.cache.policies.memory import Memory
from relaygr.cache.policy import K


class Visits(Generic[K]):
    """Counts of visits, halved each `halve_ops` visits but never below 1.

    Those of keys that are not here are remembered for `entries` of them.
    Cost: O(1); a count is halved when it is read, so that no call pays for all.
    """

    __slots__ = ("_counts", "_halve_ops", "_total")

    def __init__(self, entries: int, halve_ops: int) -> None:
        self._counts: Memory[K, tuple[int, int]] = Memory(entries)  # and the halvings that a count has seen
        self._halve_ops = halve_ops
        self._total = 0

    @property
    def ghosts(self) -> int:
        return self._counts.ghosts

    def gone(self) -> Iterator[K]:
        """Keys remembered that are not here."""
        return self._counts.gone()

    def count(self, key: K) -> int:
        """0 for a key never visited, or no longer remembered."""
        counted = self._counts.get(key)
        return 0 if counted is None else max(1, counted[0] >> (self._halvings - counted[1]))

    def add(self, key: K) -> int:
        """One more visit; returns the count."""
        count = self.count(key) + 1
        self._total += 1
        self._counts.set(key, (count, self._halvings))
        return count

    def came(self, key: K) -> int:
        """It is here now, after one visit at least; returns the count."""
        count = max(1, self.count(key))
        self._counts.came(key, (count, self._halvings))
        return count

    def left(self, key: K) -> None:
        self._counts.left(key)

    def forget(self, key: K) -> None:
        self._counts.forget(key)

    @property
    def _halvings(self) -> int:
        return self._total // self._halve_ops
