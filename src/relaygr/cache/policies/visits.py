"""How often keys were visited, those that are not here included."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic

from relaygr.cache.policy import K


class Visits(Generic[K]):
    """Counts of visits, halved each `halve_ops` visits but never below 1.

    Those of keys that are not here are remembered for the `entries` that were here or visited last.
    Cost: O(1); a count is halved when it is read, so that no call pays for all.
    """

    __slots__ = ("_entries", "_gone", "_halve_ops", "_here", "_total")

    def __init__(self, entries: int, halve_ops: int) -> None:
        self._entries, self._halve_ops = entries, halve_ops
        self._here: dict[K, tuple[int, int]] = {}  # count, and the halvings that it has seen
        self._gone: OrderedDict[K, tuple[int, int]] = OrderedDict()
        self._total = 0

    def __len__(self) -> int:
        """Keys remembered that are not here."""
        return len(self._gone)

    def count(self, key: K) -> int:
        """0 for a key never visited, or no longer remembered."""
        counted = self._here.get(key) or self._gone.get(key)
        if counted is None:
            return 0
        return max(1, counted[0] >> (self._total // self._halve_ops - counted[1]))

    def add(self, key: K) -> int:
        """One more visit; returns the count."""
        count = self.count(key) + 1
        self._total += 1
        counted = (count, self._total // self._halve_ops)
        if key in self._here:
            self._here[key] = counted
        else:
            self._remember(key, counted)
        return count

    def came(self, key: K) -> int:
        """It is here now, after one visit at least; returns the count."""
        count = max(1, self.count(key))
        self._gone.pop(key, None)
        self._here[key] = (count, self._total // self._halve_ops)
        return count

    def left(self, key: K) -> None:
        self._remember(key, self._here.pop(key))

    def forget(self, key: K) -> None:
        self._here.pop(key, None)
        self._gone.pop(key, None)

    def _remember(self, key: K, counted: tuple[int, int]) -> None:
        self._gone[key] = counted
        self._gone.move_to_end(key)
        if len(self._gone) > self._entries:
            self._gone.popitem(last=False)
