"""LRU in two segments: what was visited once leaves before what was visited again."""

from __future__ import annotations

from relaygr.cache.policies.segments import Segment, Segmented
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policy import K, Victim


class Slru(Segmented[K]):
    """Newcomers are on probation; a visit protects. What is protected above its share goes back on probation.

    Source: Karedla, Love and Wherry 1994, "Caching strategies to improve disk system performance".
    """

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._probation: Segment[K] = Segment()
        self._protected: Segment[K] = Segment()
        self._protected_share = settings.protected_share

    def touch(self, key: K) -> None:
        segment = self._where.get(key)
        if segment is self._protected:
            segment.renew(key)
        elif segment is not None:
            self._move(key, self._protected)
            self._demote()

    def evict(self) -> Victim[K] | None:
        key = self._probation.first()
        if key is None:
            key = self._protected.first()
        if key is None:
            return None
        self.remove(key)
        return Victim(key)

    def _come(self, key: K, nbytes: int) -> None:
        self._put(key, nbytes, self._probation)

    def _demote(self) -> None:
        while self._protected.nbytes > self._protected_share * self.capacity_bytes:
            key = self._protected.first()
            if key is None:
                return
            self._move(key, self._probation)
