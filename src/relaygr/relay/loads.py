"""How much ranking and pre-inference an instance has had lately: arrivals, and the time of one."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_S = 5.0
_SLICES = 20
_TIMES = 200


class Load(NamedTuple):
    """Of the last seconds.

    Attributes:
        rank_rate_per_s: rankings that arrived.
        rank_ms, pre_ms: mean time of one on its model slot; 0 until one was measured.
    """

    rank_rate_per_s: float
    rank_ms: float
    pre_ms: float


class LoadMeter:
    """Counts arrivals in slices of a sliding window, and averages the newest times; constant memory.

    A clock that steps back counts as one that stands still.
    """

    __slots__ = ("_began_s", "_counts", "_pre", "_rank", "_slice_s", "_window_s")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """Raises ValueError for a window that is not positive."""
        if not window_s > 0:
            raise ValueError(f"window_s: {window_s} must be positive")
        self._window_s, self._slice_s = window_s, window_s / _SLICES
        self._began_s: float | None = None
        # (slice number, arrivals in it), oldest first.
        self._counts: deque[list[int]] = deque()
        self._rank, self._pre = _Mean(_TIMES), _Mean(_TIMES)

    def rank_arrived(self, now_s: float) -> None:
        if self._began_s is None:
            self._began_s = now_s
        number = int(now_s // self._slice_s)
        if self._counts and self._counts[-1][0] >= number:
            self._counts[-1][1] += 1
        else:
            self._counts.append([number, 1])
            self._forget(now_s)

    def rank_took(self, now_s: float, ms: float, rankings: int = 1) -> None:
        """So many rankings ran together and took so long of their slot."""
        for _ in range(rankings):
            self._rank.add(ms / rankings)

    def pre_took(self, now_s: float, ms: float) -> None:
        """A pre-inference took so long of its slot, all chunks together."""
        self._pre.add(ms)

    def rates(self, now_s: float) -> Load:
        """What the window holds; while it fills, the rate is that since its first arrival."""
        self._forget(now_s)
        arrivals = sum(count for _, count in self._counts)
        if self._began_s is None or not arrivals:
            return Load(0.0, self._rank.mean, self._pre.mean)
        span_s = min(max(now_s - self._began_s, self._window_s / 4), self._window_s)
        return Load(arrivals / span_s, self._rank.mean, self._pre.mean)

    def _forget(self, now_s: float) -> None:
        oldest = int((now_s - self._window_s) // self._slice_s)
        while self._counts and self._counts[0][0] <= oldest:
            self._counts.popleft()


class _Mean:
    """Of the newest values."""

    __slots__ = ("_sum", "_values")

    def __init__(self, limit: int) -> None:
        self._values: deque[float] = deque(maxlen=limit)
        self._sum = 0.0

    @property
    def mean(self) -> float:
        return self._sum / len(self._values) if self._values else 0.0

    def add(self, value: float) -> None:
        if len(self._values) == self._values.maxlen:
            self._sum -= self._values[0]
        self._values.append(value)
        self._sum += value
