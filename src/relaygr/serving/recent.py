"""Counts and latencies of the last five minutes, in slices of five seconds; bounded however much is noted."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from relaygr.core.clock import Clock

SLICE_S = 5.0
MINUTE_S, FIVE_MINUTES_S = 60.0, 300.0
_SLICES = int(FIVE_MINUTES_S / SLICE_S) + 1  # the one that is being filled is extra
# Geometric buckets: a percentile is off by at most 2 % between 10 us and 10,000 s.
_LEAST_S, _GROWTH = 1e-5, 1.04
_LOG_GROWTH = math.log(_GROWTH)
_LAST_BUCKET = math.ceil(math.log(1e4 / _LEAST_S) / _LOG_GROWTH)


@dataclass(slots=True)
class _Slice:
    number: int
    counts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    latencies: dict[str, Counter[int]] = field(default_factory=dict)  # observations by bucket


class Recent:
    """A ring of slices. May be used from any thread.

    The caller sees to it that there are few names. A window is the slice that is being filled and the whole
    ones before it, so it is up to a slice longer than asked for; rates divide by what it really covers.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_s = clock.now_s()
        self._lock = threading.Lock()
        self._ring: list[_Slice | None] = [None] * _SLICES

    def count(self, *names: str, amount: int = 1) -> None:
        """Add `amount` to each of the names."""
        with self._lock:
            counts = self._slice().counts
            for name in names:
                counts[name] += amount

    def spend(self, name: str, seconds: float) -> None:
        """Add a duration to a name's sum."""
        with self._lock:
            sums = self._slice().seconds
            sums[name] = sums.get(name, 0.0) + seconds

    def observe(self, seconds: float, *names: str) -> None:
        """One latency, under each of the names."""
        bucket = _bucket(seconds)
        with self._lock:
            latencies = self._slice().latencies
            for name in names:
                found = latencies.get(name)
                if found is None:
                    found = latencies[name] = Counter()
                found[bucket] += 1

    def counts(self, window_s: float) -> Counter[str]:
        """By name, over the window."""
        total: Counter[str] = Counter()
        with self._lock:
            for one in self._window(window_s):
                total.update(one.counts)
        return total

    def seconds(self, name: str, window_s: float) -> float:
        with self._lock:
            return sum(one.seconds.get(name, 0.0) for one in self._window(window_s))

    def latencies(self, window_s: float) -> dict[str, Counter[int]]:
        """Observations by name and bucket; `percentile_ms` reads them."""
        total: dict[str, Counter[int]] = {}
        with self._lock:
            for one in self._window(window_s):
                for name, buckets in one.latencies.items():
                    total.setdefault(name, Counter()).update(buckets)
        return total

    def covered_s(self, window_s: float) -> float:
        """How long the window is by now; never 0."""
        now = self._clock.now_s()
        begin = (int(now // SLICE_S) - _whole(window_s)) * SLICE_S
        return max(now - max(begin, self._start_s), 1e-3)

    def timeline(self, name: str, errors: str) -> list[tuple[float, Counter[int], int]]:
        """Every slice of the last five minutes, oldest first, without the one that is being filled.

        Returns (age of its end in seconds, latencies of `name`, count of `errors`); slices before the start
        are left out.
        """
        now = self._clock.now_s()
        newest = int(now // SLICE_S)
        first = max(newest - _SLICES + 1, int(self._start_s // SLICE_S))
        found = []
        with self._lock:
            for number in range(first, newest):
                one = self._ring[number % _SLICES]
                age_s = now - (number + 1) * SLICE_S
                if one is None or one.number != number:
                    found.append((age_s, Counter[int](), 0))
                else:
                    found.append((age_s, Counter(one.latencies.get(name, {})), one.counts[errors]))
        return found

    def _slice(self) -> _Slice:
        """The one of now; called with the lock held."""
        number = int(self._clock.now_s() // SLICE_S)
        one = self._ring[number % _SLICES]
        if one is None or one.number != number:
            one = self._ring[number % _SLICES] = _Slice(number)
        return one

    def _window(self, window_s: float) -> Iterable[_Slice]:
        newest = int(self._clock.now_s() // SLICE_S)
        oldest = newest - _whole(window_s)
        return [one for one in self._ring if one is not None and oldest <= one.number <= newest]


def percentile_ms(buckets: Counter[int], share: float) -> float | None:
    """The latency by nearest rank, in the middle of its bucket; None without observations."""
    rank = max(math.ceil(share * buckets.total()), 1)
    for bucket in sorted(buckets):
        rank -= buckets[bucket]
        if rank <= 0:
            return float(f"{_LEAST_S * 1e3 * _GROWTH ** (bucket - 0.5):.4g}")
    return None


def _bucket(seconds: float) -> int:
    if seconds <= _LEAST_S:
        return 0
    return min(math.ceil(math.log(seconds / _LEAST_S) / _LOG_GROWTH), _LAST_BUCKET)


def _whole(window_s: float) -> int:
    """Whole slices of a window."""
    return min(int(window_s / SLICE_S), _SLICES - 1)
