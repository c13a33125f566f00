"""Measured over predicted time in a window of recent passes, with its P99 always at hand."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 2000


@dataclass(frozen=True, slots=True)
class ErrorRatio:
    """Measured over predicted time.

    Attributes:
        samples: passes in the window; without any, the ratios are 1 and the error 0.
        median, p99: percentiles, linear between the two nearest samples.
        mean_error: mean of |ratio - 1|.
    """

    samples: int
    median: float
    p99: float
    mean_error: float


class RatioWindow:
    """The last `limit` ratios; an update moves one slot of a sorted list."""

    def __init__(self, ratios: Iterable[float] = (), limit: int = WINDOW) -> None:
        """Raises ValueError for a limit below 1."""
        if limit < 1:
            raise ValueError(f"limit: {limit} must be at least 1")
        # The oldest leaves by itself, whatever the length of `ratios`.
        self._recent: deque[float] = deque(ratios, maxlen=limit)
        self._sorted = sorted(self._recent)
        # Kept ready, so that another thread reads one value and never a list that is being changed.
        self.p90, self.p99 = (_percentile(self._sorted, share) for share in (0.9, 0.99))

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, ratio: float) -> None:
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        self.p90, self.p99 = (_percentile(self._sorted, share) for share in (0.9, 0.99))

    def error(self) -> ErrorRatio:
        """Linear in the window; for an exporter, not for every pass."""
        ordered = self._sorted[:]
        mean = sum(abs(ratio - 1) for ratio in ordered) / max(len(ordered), 1)
        return ErrorRatio(len(ordered), _percentile(ordered, 0.5), _percentile(ordered, 0.99), mean)


def _percentile(ordered: list[float], share: float) -> float:
    """Linear interpolation between order statistics; 1 for an empty list."""
    if not ordered:
        return 1.0
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return low + (high - low) * (place - below)
