"""Who was not visited for longest leaves."""

from __future__ import annotations

from relaygr.cache.policies.order import Ordered
from relaygr.cache.policy import K, Victim, Weight


class Lru(Ordered[K]):
    """By the last visit, or by the coming if none came since."""

    def insert(self, key: K, weight: Weight) -> None:
        if key not in self._order:
            self._order.place(key, 0)

    def touch(self, key: K) -> None:
        if key in self._order:
            self._order.place(key, 0)  # of equal ranks, the one placed first comes first

    def remove(self, key: K) -> None:
        self._order.remove(key)

    def forget(self, key: K) -> None:
        if key in self._order:
            self._order.remove(key)

    def evict(self) -> Victim[K] | None:
        key = self._order.pop()
        return None if key is None else Victim(key)
