"""A window for newcomers, and a main part that takes from it only what is visited as often as what leaves."""

from __future__ import annotations

from relaygr.cache.policies.segments import Segment, Segmented
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policies.sketch import Sketch
from relaygr.cache.policy import K, Victim


class WTinyLfu(Segmented[K]):
    """The window is an LRU, the main part a segmented one; visits of all keys are counted in a sketch.

    Of the oldest of the window and the next to leave the main part, the one with fewer visits leaves; with as
    many, the one of the main part, so that a main part that nobody visits is let go in time.
    Source: Einziger, Friedman and Manes 2017, "TinyLFU: a highly efficient cache admission policy".
    """

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._window: Segment[K] = Segment()
        self._probation: Segment[K] = Segment()
        self._protected: Segment[K] = Segment()
        self._sketch = Sketch(settings.ghost_entries)
        self._window_share, self._protected_share = settings.window_share, settings.protected_share

    @property
    def _window_bytes(self) -> float:
        return self._window_share * self.capacity_bytes

    @property
    def _main_bytes(self) -> float:
        return self.capacity_bytes - self._window_bytes

    def touch(self, key: K) -> None:
        self._sketch.add(key)
        segment = self._where.get(key)
        if segment is self._probation:
            self._move(key, self._protected)
            self._demote()
        elif segment is not None:
            segment.renew(key)

    def evict(self) -> Victim[K] | None:
        self._admit()
        candidate, victim = self._window.first(), self._probation.first()
        if victim is None:
            victim = self._protected.first()
        if candidate is not None and (victim is None or self._is_refused(candidate, victim)):
            victim = candidate
        if victim is None:
            return None
        self.remove(victim)
        return Victim(victim)

    def forget(self, key: K) -> None:
        super().forget(key)
        self._sketch.forget(key)

    def _come(self, key: K, nbytes: int) -> None:
        self._put(key, nbytes, self._window)
        self._admit()

    def _is_refused(self, candidate: K, victim: K) -> bool:
        """A window that has room for another like its oldest gives nothing up."""
        if self._window.nbytes + self._window.size(candidate) <= self._window_bytes:
            return False
        return self._sketch.estimate(candidate) < self._sketch.estimate(victim)

    def _admit(self) -> None:
        """What the window has too much goes to the main part while there is room in it, but for the last."""
        while self._window.nbytes > self._window_bytes and len(self._window) > 1:
            key = self._window.first()
            if key is None:
                return
            main = self._probation.nbytes + self._protected.nbytes
            if main + self._window.size(key) > self._main_bytes:
                return
            self._move(key, self._probation)

    def _demote(self) -> None:
        while self._protected.nbytes > self._protected_share * self._main_bytes:
            key = self._protected.first()
            if key is None:
                return
            self._move(key, self._probation)
