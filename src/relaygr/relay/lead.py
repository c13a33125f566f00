"""Quantiles of recent measurements: lead times, lives of prefixes, sizes, candidates."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class Quantiles:
    """The last `limit` values; an update moves one slot of a sorted list."""

    __slots__ = ("_recent", "_sorted")

    def __init__(self, limit: int) -> None:
        """Raises ValueError for a limit below 1."""
        if limit < 1:
            raise ValueError(f"limit: {limit} must be at least 1")
        self._recent: deque[float] = deque(maxlen=limit)
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, value: float) -> None:
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(value)
        insort(self._sorted, value)

    def at(self, share: float) -> float | None:
        """Linear between the two nearest values; None without any.

        Raises:
            ValueError: `share` is outside [0, 1].
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share: {share} is outside [0, 1]")
        if not self._sorted:
            return None
        place = share * (len(self._sorted) - 1)
        below = int(place)
        low, high = self._sorted[below], self._sorted[min(below + 1, len(self._sorted) - 1)]
        return low + (high - low) * (place - below)
