"""Whether reuse moves scores: which hits are scored again without the cache, and which builds were caught."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the differences of a build: the largest, their sum and their number."""

    max: float = 0.0
    sum: float = 0.0
    count: int = 0


class ShadowBook:
    """Differences between cached and uncached scores, by build.

    A build whose difference once exceeded its limit stays off. Not for several threads.
    """

    def __init__(self, rate: float, limit: float) -> None:
        """`rate` of all hits are sampled; `limit` holds for builds without one of their own."""
        self._threshold = round(rate * 2**64)
        self._limit = limit
        self._limits: dict[str, float] = {}
        self._summaries: dict[str, Summary] = {}
        self._disabled: set[str] = set()

    def sampled(self, number: int) -> bool:
        """Whether hit `number` is scored again; the same for everyone, and without a period."""
        return _mix(number) < self._threshold

    def set_limit(self, build: str, limit: float) -> None:
        """Of one build, as it was measured; does not switch it on again."""
        self._limits[build] = limit

    def observe(self, build: str, difference: float) -> bool:
        """The largest absolute difference of a sampled hit; whether it switches the build off.

        What is not a number counts as infinite. True once for a build.
        """
        found = math.inf if math.isnan(difference) else abs(difference)
        old = self._summaries.get(build, Summary())
        self._summaries[build] = Summary(max(old.max, found), old.sum + found, old.count + 1)
        if found <= self._limits.get(build, self._limit) or build in self._disabled:
            return False
        self._disabled.add(build)
        return True

    def enabled(self, build: str) -> bool:
        return build not in self._disabled

    @property
    def disabled(self) -> frozenset[str]:
        """Builds that were caught."""
        return frozenset(self._disabled)

    def summary(self, build: str) -> Summary:
        return self._summaries.get(build, Summary())


def _mix(number: int) -> int:
    """The mixer of SplitMix64 (Steele, Lea, Flood 2014): neighbours have nothing in common."""
    z = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
