"""A token bucket whose admissions are bounded in every window of time, not only on average."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A window is long enough for so many admissions, and at least so long.
_WINDOW_ADMISSIONS, _WINDOW_S = 20.0, 1.0


@dataclass(frozen=True, slots=True)
class BucketShape:
    """How a rate is spread over time: `burst` at once and `refill_per_s` is `rate` times any `window_s`.

    A higher rate has neither a smaller burst nor a slower refill, so that the bound of the highest rate in a
    window holds for that window.
    """

    window_s: float
    burst: float
    refill_per_s: float


def bucket_shape(rate_per_s: float, burst_max: float) -> BucketShape:
    """At most half of a window's admissions come at once; infinite rates refill at once, 0 never.

    Raises:
        ValueError: the rate is negative or not a number, or the burst is below 1.
    """
    if not rate_per_s >= 0 or not burst_max >= 1:
        raise ValueError(f"rate_per_s {rate_per_s} must be at least 0, burst_max {burst_max} at least 1")
    if rate_per_s == 0:
        return BucketShape(math.inf, 0.0, 0.0)
    if rate_per_s == math.inf:
        return BucketShape(_WINDOW_S, burst_max, math.inf)
    if rate_per_s * _WINDOW_S >= _WINDOW_ADMISSIONS:
        window, admissions = _WINDOW_S, rate_per_s * _WINDOW_S
    else:
        window, admissions = _WINDOW_ADMISSIONS / rate_per_s, _WINDOW_ADMISSIONS
    burst = min(burst_max, admissions / 2)
    return BucketShape(window, burst, (admissions - burst) / window)


class TokenBucket:
    """At most rate * window_s tokens are taken in any `window_s`; starts full.

    A clock that steps back counts as one that stands still.
    """

    __slots__ = ("_burst_max", "_level", "_rate_per_s", "_seen_s", "_shape")

    def __init__(self, rate_per_s: float, burst_max: float) -> None:
        """Raises ValueError as `bucket_shape` does."""
        self._burst_max = burst_max
        self._rate_per_s = rate_per_s
        self._shape = bucket_shape(rate_per_s, burst_max)
        self._level = self._shape.burst
        self._seen_s = -math.inf

    @property
    def rate_per_s(self) -> float:
        return self._rate_per_s

    @property
    def shape(self) -> BucketShape:
        return self._shape

    def set_rate(self, rate_per_s: float, now_s: float) -> None:
        """From now on; tokens that the new burst does not allow are lost.

        Raises:
            ValueError: the rate is negative or not a number.
        """
        if rate_per_s == self._rate_per_s:
            return
        shape = bucket_shape(rate_per_s, self._burst_max)
        self._refill(now_s)
        self._rate_per_s, self._shape = rate_per_s, shape
        self._level = min(self._level, shape.burst)

    def has(self, now_s: float, tokens: float = 1.0) -> bool:
        """Whether `take` would succeed."""
        self._refill(now_s)
        return self._level >= tokens

    def take(self, now_s: float, tokens: float = 1.0) -> bool:
        """So many tokens, at most one; False, and nothing changed, if they are not there."""
        if not self.has(now_s, tokens):
            return False
        self._level -= tokens
        return True

    def refund(self, tokens: float = 1.0) -> None:
        """Give back tokens that were not needed after all.

        In the instant it was taken this is exact; later, the refill since then may be admitted on top.
        """
        self._level = min(self._level + tokens, self._shape.burst)

    def _refill(self, now_s: float) -> None:
        elapsed = now_s - self._seen_s
        if self._shape.refill_per_s == math.inf:
            self._level = self._shape.burst
        elif elapsed > 0 and self._level < self._shape.burst:
            self._level = min(self._level + elapsed * self._shape.refill_per_s, self._shape.burst)
        self._seen_s = max(now_s, self._seen_s)
