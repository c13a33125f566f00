"""Keys by rank, least first, with some of them parked."""

from __future__ import annotations

import heapq
from typing import Generic

from relaygr.cache.policy import K, Policy


class Order(Generic[K]):
    """Each key has a rank, a whole number; among equal ranks the one placed first comes first.

    Parked keys keep rank and place, but are not found by `first` and `pop`.
    Raises: KeyError for a key that is not here, from all that take a key but `place`.
    Cost: O(log n) amortised; a heap with lazy deletion, rebuilt when more than half of it is stale. The heap
    holds numbers only, so that nothing of a removed key stays behind.
    """

    __slots__ = ("_at", "_heap", "_keys", "_next")

    def __init__(self) -> None:
        self._at: dict[K, tuple[int, int]] = {}  # rank and ticket of all keys
        self._keys: dict[int, K] = {}  # ticket -> key, of those not parked
        self._heap: list[tuple[int, int]] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def rank(self, key: K) -> int:
        return self._at[key][0]

    def is_parked(self, key: K) -> bool:
        return self._at[key][1] not in self._keys

    def place(self, key: K, rank: int) -> None:
        """A newcomer, not parked; or another rank for a key that is here, parked or not as it was."""
        before = self._at.get(key)
        at = self._at[key] = (rank, self._next)
        self._next += 1
        if before is not None:
            if before[1] not in self._keys:
                return
            del self._keys[before[1]]
        self._keys[at[1]] = key
        self._push(at)

    def remove(self, key: K) -> None:
        self._keys.pop(self._at.pop(key)[1], None)

    def park(self, key: K) -> None:
        self._keys.pop(self._at[key][1], None)

    def unpark(self, key: K) -> None:
        at = self._at[key]
        if at[1] not in self._keys:
            self._keys[at[1]] = key
            self._push(at)

    def first(self) -> K | None:
        """The key of least rank that is not parked."""
        heap, keys = self._heap, self._keys
        while heap:
            ticket = heap[0][1]
            if ticket in keys:
                return keys[ticket]
            heapq.heappop(heap)
        return None

    def pop(self) -> K | None:
        """Take out the `first`."""
        key = self.first()
        if key is not None:
            heapq.heappop(self._heap)
            self.remove(key)
        return key

    def _push(self, at: tuple[int, int]) -> None:
        heapq.heappush(self._heap, at)
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [place for place in self._at.values() if place[1] in self._keys]
            heapq.heapify(self._heap)


class Ordered(Policy[K]):
    """A policy with all its entries in one order, in which parked ones keep their place."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._order: Order[K] = Order()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._order

    def park(self, key: K) -> None:
        self._order.park(key)

    def unpark(self, key: K) -> None:
        self._order.unpark(key)
