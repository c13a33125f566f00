"""A queue and a hand: who was visited since the hand came by stays, and stays in place."""

from __future__ import annotations

from relaygr.cache.policies.order import Ordered
from relaygr.cache.policy import K, Victim, Weight

# A rank is the hand's round in which it comes by, then the number of the coming.
_ROUND = 1 << 64


class Sieve(Ordered[K]):
    """The hand goes from old to new, clears the mark of who was visited and takes the first without one.

    Source: Zhang et al. 2024, "SIEVE is simpler than LRU".
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._visited: set[K] = set()
        self._hand = 0
        self._comings = 0

    def insert(self, key: K, weight: Weight) -> None:
        if key not in self._order:
            self._comings += 1
            self._order.place(key, self._ahead(self._comings))

    def touch(self, key: K) -> None:
        if key in self._order:
            self._visited.add(key)

    def remove(self, key: K) -> None:
        self._order.remove(key)
        self._visited.discard(key)

    def forget(self, key: K) -> None:
        if key in self._order:
            self.remove(key)

    def unpark(self, key: K) -> None:
        if self._order.is_parked(key):  # the hand may have come by meanwhile
            self._order.place(key, self._ahead(self._order.rank(key) % _ROUND))
            self._order.unpark(key)

    def evict(self) -> Victim[K] | None:
        while (key := self._order.first()) is not None:
            self._hand = self._order.rank(key)
            if key not in self._visited:
                self._order.remove(key)
                self._turn()
                return Victim(key)
            self._visited.discard(key)
            self._order.place(key, self._hand + _ROUND)
        return None

    def _ahead(self, coming: int) -> int:
        """When the hand will come by next."""
        number, place = divmod(self._hand, _ROUND)
        return (number if coming > place else number + 1) * _ROUND + coming

    def _turn(self) -> None:
        """With nobody newer before it, the hand is at the oldest again, and who comes next is ahead of it."""
        key = self._order.first()
        number = self._hand // _ROUND
        if key is None or self._order.rank(key) // _ROUND > number:
            self._hand = (number + 1) * _ROUND
