"""Who was not visited for longest leaves."""

from __future__ import annotations

from relaygr.cache.policies.order import Order
from relaygr.cache.policy import K, Policy, Victim, Weight


class Lru(Policy[K]):
    """By the last visit, or by the coming if none came since."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._order: Order[K] = Order()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._order

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

    def park(self, key: K) -> None:
        self._order.park(key)

    def unpark(self, key: K) -> None:
        self._order.unpark(key)

    def evict(self) -> Victim[K] | None:
        key = self._order.pop()
        return None if key is None else Victim(key)
