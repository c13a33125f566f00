"""A quantile of the most recent samples, always at hand."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics of at least one sample."""
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return low + (high - low) * (place - below)


class QuantileWindow:
    """The last `limit` samples; an update is a search and moves one slot of a sorted list.

    One thread may add; any thread may read `value`.
    """

    __slots__ = ("_default", "_least", "_recent", "_share", "_sorted", "value")

    def __init__(
        self, share: float, default: float, limit: int, samples: Iterable[float] = (), least: int = 1
    ) -> None:
        """A window that holds the last of `samples`.

        Args:
            share: of the samples that are at most `value`, in [0, 1].
            default: `value` with fewer than `least` samples.
            limit: samples kept, at least 1.

        Raises:
            ValueError: the limit is below 1.
        """
        if limit < 1:
            raise ValueError(f"limit: {limit} must be at least 1")
        self._share, self._default, self._least = share, default, max(least, 1)
        # The oldest leaves by itself, whatever the length of `samples`.
        self._recent: deque[float] = deque(samples, maxlen=limit)
        self._sorted = sorted(self._recent)
        # Kept ready, so that another thread reads one value and never a list that is being changed.
        self.value = self._find()

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, sample: float) -> None:
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(sample)
        insort(self._sorted, sample)
        self.value = self._find()

    def at(self, share: float) -> float:
        """Another quantile; for the thread that adds."""
        return percentile(self._sorted, share) if len(self._sorted) >= self._least else self._default

    def ordered(self) -> list[float]:
        """A copy of the samples, smallest first."""
        return self._sorted[:]

    def _find(self) -> float:
        return percentile(self._sorted, self._share) if len(self._sorted) >= self._least else self._default
