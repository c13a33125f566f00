"""A small queue that newcomers must survive, a main one, and the ghosts of those that did not."""

from __future__ import annotations

from collections.abc import Iterator

from relaygr.cache.policies.ghosts import Ghosts
from relaygr.cache.policies.segments import Segment, Segmented
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policy import K, Victim

_COUNTED = 3


class S3Fifo(Segmented[K]):
    """First in, first out, with up to three visits counted and nothing moved by a visit.

    At the end of the small queue, who was visited `promote_at` times goes to the main one; at the end of the
    main one, who was visited goes round again for one visit less. Ghosts that return come into the main one,
    and so do newcomers that the small one has no room for before anything had to leave.
    Source: Yang et al. 2023, "FIFO queues are all you need for cache eviction".
    """

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._small: Segment[K] = Segment()
        self._main: Segment[K] = Segment()
        self._ghosts: Ghosts[K] = Ghosts(settings.ghost_entries)
        self._visits: dict[K, int] = {}
        self._promote_at = settings.promote_at
        self._small_share = settings.small_share
        self._filling = True

    @property
    def _main_bytes(self) -> float:
        return self.capacity_bytes - self._small_bytes

    @property
    def _small_bytes(self) -> float:
        return self._small_share * self.capacity_bytes

    def touch(self, key: K) -> None:
        if key in self._visits:
            self._visits[key] = min(self._visits[key] + 1, _COUNTED)
        else:
            self._ghosts.visit(key)

    def evict(self) -> Victim[K] | None:
        key = self._from_small() if self._small.nbytes and self._main.nbytes <= self._main_bytes else None
        if key is None:
            key = self._from_main()
        if key is None:
            key = self._from_small()
        if key is None:
            return None
        self._filling = False
        return Victim(key)

    def remembered(self) -> Iterator[K]:
        return iter(self._ghosts)

    def forget(self, key: K) -> None:
        super().forget(key)
        self._ghosts.forget(key)

    def _come(self, key: K, nbytes: int) -> None:
        self._visits[key] = 0
        returns = self._ghosts.came(key)
        overflows = self._filling and self._small.nbytes >= self._small_bytes
        self._put(key, nbytes, self._main if returns or overflows else self._small)

    def _left(self, key: K, nbytes: int, segment: Segment[K]) -> None:
        del self._visits[key]
        if segment is self._small:
            self._ghosts.add(key, nbytes)
            self._ghosts.trim(self._main_bytes)

    def _from_small(self) -> K | None:
        while (key := self._small.first()) is not None:
            if self._visits[key] < self._promote_at:
                self.remove(key)
                return key
            self._visits[key] = 0
            self._move(key, self._main)
        return None

    def _from_main(self) -> K | None:
        while (key := self._main.first()) is not None:
            if not self._visits[key]:
                self.remove(key)
                return key
            self._visits[key] -= 1
            self._main.renew(key)
        return None
