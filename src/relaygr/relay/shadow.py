"""Which hits are scored again without the cache, and what their differences mean for a build."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Epsilon:
    """Differences between cached and uncached scores of one build.

    Attributes:
        count, total, largest: of the differences that were observed.
        breached: one was above the limit; the relay stays off for the build.
    """

    count: int = 0
    total: float = 0.0
    largest: float = 0.0
    breached: bool = False


class ShadowBook:
    """Samples evenly, without chance: of n hits, `rate` x n, rounded down. Not for several threads."""

    def __init__(self, rate: float, limit: float) -> None:
        """Raises ValueError for a rate outside [0, 1] or a limit that is not positive."""
        if not 0 <= rate <= 1:
            raise ValueError(f"rate: {rate} is outside [0, 1]")
        if not limit > 0:
            raise ValueError(f"limit: {limit} must be positive")
        self.rate, self.limit = rate, limit
        self._due = 0.0
        self._builds: dict[str, Epsilon] = {}

    def sampled(self) -> bool:
        """Whether this hit is one of the sample."""
        self._due += self.rate
        if self._due < 1 - 1e-9:
            return False
        self._due -= 1
        return True

    def observe(self, build: str, difference: float) -> bool:
        """Note a difference; True if it is the first of its build above the limit. NaN is above."""
        before = self._builds.get(build, Epsilon())
        above = not difference <= self.limit
        self._builds[build] = Epsilon(
            before.count + 1,
            before.total + difference,
            max(before.largest, difference) if difference == difference else difference,
            before.breached or above,
        )
        return above and not before.breached

    def epsilon(self, build: str) -> Epsilon:
        return self._builds.get(build, Epsilon())
