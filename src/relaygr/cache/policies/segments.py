"""Queues of entries with their bytes, and what policies of several queues have in common."""

from __future__ import annotations

from abc import abstractmethod

from relaygr.cache.policies.order import Order
from relaygr.cache.policy import K, Policy, Weight


class Segment(Order[K]):
    """A queue: what was put last leaves last."""

    __slots__ = ("_sizes", "nbytes")

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[K, int] = {}
        self.nbytes = 0

    def size(self, key: K) -> int:
        return self._sizes[key]

    def put(self, key: K, nbytes: int) -> None:
        """A newcomer, at the end."""
        self.place(key, 0)
        self._sizes[key] = nbytes
        self.nbytes += nbytes

    def renew(self, key: K) -> None:
        """To the end."""
        self.place(key, 0)

    def resize(self, key: K, nbytes: int) -> None:
        self.nbytes += nbytes - self._sizes[key]
        self._sizes[key] = nbytes

    def remove(self, key: K) -> None:
        super().remove(key)
        self.nbytes -= self._sizes.pop(key)


class Segmented(Policy[K]):
    """Entries in several queues, each entry in one; the policy says where one comes and moves."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._where: dict[K, Segment[K]] = {}

    @abstractmethod
    def _come(self, key: K, nbytes: int) -> None:
        """A key that was not here."""

    def _left(self, key: K, nbytes: int, segment: Segment[K]) -> None:
        """Hook: it is not here any more, and was in `segment`."""

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, key: object) -> bool:
        return key in self._where

    def insert(self, key: K, weight: Weight) -> None:
        segment = self._where.get(key)
        if segment is None:
            self._come(key, weight.nbytes)
        else:
            segment.resize(key, weight.nbytes)

    def remove(self, key: K) -> None:
        segment = self._where.pop(key)
        nbytes = segment.size(key)
        segment.remove(key)
        self._left(key, nbytes, segment)

    def forget(self, key: K) -> None:
        if key in self._where:
            self.remove(key)

    def park(self, key: K) -> None:
        self._where[key].park(key)

    def unpark(self, key: K) -> None:
        self._where[key].unpark(key)

    def _put(self, key: K, nbytes: int, segment: Segment[K]) -> None:
        segment.put(key, nbytes)
        self._where[key] = segment

    def _move(self, key: K, segment: Segment[K]) -> None:
        """To the end of another segment, parked if it was."""
        before = self._where[key]
        nbytes, parked = before.size(key), before.is_parked(key)
        before.remove(key)
        self._put(key, nbytes, segment)
        if parked:
            segment.park(key)
