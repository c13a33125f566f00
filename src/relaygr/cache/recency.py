"""Who leaves first among entries that may: the lowest rank, and of equal ones the least recently used."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from relaygr.cache.entry import Identity


class _Item(NamedTuple):
    rank: int
    last_use: int
    key: Identity


class Recency:
    """Order of use of all entries, with the pinned ones parked: they keep their place but are no victims.

    Changes: `touch` and `set_rank` alone move a known entry; `pop_oldest` forgets the one it returns.
    Cost: O(log n) amortised; a heap with lazy deletion, rebuilt when more than half of it is stale.
    """

    __slots__ = ("_heap", "_last_use", "_next", "_parked", "_ranks")

    def __init__(self) -> None:
        self._heap: list[_Item] = []
        self._ranks: dict[Identity, int] = {}  # those that are not 0
        self._last_use: dict[Identity, int] = {}
        self._parked: set[Identity] = set()
        self._next = 0

    def __len__(self) -> int:
        return len(self._last_use)

    def insert(self, key: Identity) -> None:
        """A newcomer is the most recently used; a known key keeps its place."""
        if key not in self._last_use:
            self.touch(key)

    def touch(self, key: Identity) -> None:
        self._last_use[key] = self._next
        self._next += 1
        if key not in self._parked:
            self._push(key)

    def set_rank(self, key: Identity, rank: int) -> None:
        """Lower ranks leave first; 0 unless it is set. Of an unknown key a no-op."""
        if key not in self._last_use or self._ranks.get(key, 0) == rank:
            return
        self._ranks[key] = rank
        if not rank:
            del self._ranks[key]
        if key not in self._parked:
            self._push(key)

    def remove(self, key: Identity) -> None:
        self._last_use.pop(key, None)
        self._ranks.pop(key, None)
        self._parked.discard(key)

    def is_parked(self, key: Identity) -> bool:
        return key in self._parked

    def park(self, key: Identity) -> None:
        self._parked.add(key)

    def unpark(self, key: Identity) -> None:
        self._parked.discard(key)
        self._push(key)

    def pop_oldest(self, keep: Identity | None = None) -> Identity | None:
        """Remove and return the entry to leave first that is neither parked nor `keep`."""
        kept: _Item | None = None
        victim: Identity | None = None
        while self._heap:
            item = heapq.heappop(self._heap)
            if self._is_stale(item):
                continue
            if item.key != keep:
                victim = item.key
                break
            kept = item
        if kept is not None:
            heapq.heappush(self._heap, kept)
        if victim is not None:
            self.remove(victim)
        return victim

    def oldest(self) -> Iterator[Identity]:
        """Entries that are not parked, in the order of leaving; nothing may change meanwhile.

        The first k cost O(k log k), and as much for each stale item met.
        """
        frontier = [(self._heap[0], 0)] if self._heap else []
        last: Identity | None = None
        while frontier:
            item, place = heapq.heappop(frontier)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(self._heap):
                    heapq.heappush(frontier, (self._heap[child], child))
            if item.key != last and not self._is_stale(item):  # an entry unparked twice is there twice
                last = item.key
                yield last

    def _is_stale(self, item: _Item) -> bool:
        rank, last_use, key = item
        return self._last_use.get(key) != last_use or key in self._parked or self._ranks.get(key, 0) != rank

    def _push(self, key: Identity) -> None:
        heapq.heappush(self._heap, self._item(key))
        if len(self._heap) > 2 * len(self._last_use) + 64:
            self._heap = [self._item(key) for key in self._last_use if key not in self._parked]
            heapq.heapify(self._heap)

    def _item(self, key: Identity) -> _Item:
        return _Item(self._ranks.get(key, 0), self._last_use[key], key)
