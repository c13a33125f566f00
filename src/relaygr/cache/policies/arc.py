"""Recency against frequency, with the border set by which of the two let go too early."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from relaygr.cache.policies.ghosts import Ghosts
from relaygr.cache.policies.segments import Segment, Segmented
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policy import K, Victim


class Arc(Segmented[K]):
    """Entries visited once and entries visited again, each by LRU, with the ghosts of both.

    A ghost of the first that returns gives the first more of the capacity, one of the second gives it less.
    Source: Megiddo and Modha 2003, "ARC: a self-tuning, low overhead replacement cache"; here in bytes.
    """

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._once: Segment[K] = Segment()
        self._again: Segment[K] = Segment()
        self._once_ghosts: Ghosts[K] = Ghosts(settings.ghost_entries)
        self._again_ghosts: Ghosts[K] = Ghosts(settings.ghost_entries)
        self._once_bytes = 0.0  # what entries visited once may take

    def touch(self, key: K) -> None:
        segment = self._where.get(key)
        if segment is self._again:
            segment.renew(key)
        elif segment is not None:
            self._move(key, self._again)
        else:
            self._adapt(key)

    def evict(self) -> Victim[K] | None:
        first, second = self._once, self._again
        if first.nbytes <= self._once_bytes:
            first, second = second, first
        key = first.first()
        if key is None:
            key = second.first()
        if key is None:
            return None
        self.remove(key)
        return Victim(key)

    def remembered(self) -> Iterator[K]:
        return chain(self._once_ghosts, self._again_ghosts)

    def forget(self, key: K) -> None:
        super().forget(key)
        self._once_ghosts.forget(key)
        self._again_ghosts.forget(key)

    def _adapt(self, key: K) -> None:
        once, again = self._once_ghosts.nbytes, self._again_ghosts.nbytes
        if (nbytes := self._once_ghosts.visit(key)) is not None:
            step = max(1.0, again / max(1, once)) * nbytes
            self._once_bytes = min(self._once_bytes + step, self.capacity_bytes)
        elif (nbytes := self._again_ghosts.visit(key)) is not None:
            step = max(1.0, once / max(1, again)) * nbytes
            self._once_bytes = max(self._once_bytes - step, 0.0)

    def _come(self, key: K, nbytes: int) -> None:
        returns = self._once_ghosts.came(key)
        returns = self._again_ghosts.came(key) or returns
        self._put(key, nbytes, self._again if returns else self._once)
        self._trim()

    def _left(self, key: K, nbytes: int, segment: Segment[K]) -> None:
        (self._once_ghosts if segment is self._once else self._again_ghosts).add(key, nbytes)
        self._trim()

    def _trim(self) -> None:
        """Once and its ghosts within the capacity, all together within twice of it."""
        self._once_ghosts.trim(self.capacity_bytes - self._once.nbytes)
        here = self._once.nbytes + self._again.nbytes
        self._again_ghosts.trim(2 * self.capacity_bytes - here - self._once_ghosts.nbytes)
