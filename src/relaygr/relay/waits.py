"""How long a ranking would wait behind others if all of them were computed whole."""

from __future__ import annotations

import math
from functools import lru_cache

# The sum alternates: beyond so many passes its digits are gone, and the wait is too long for any budget.
_LONGEST_PASSES = 15
_FULL = 0.98
_STEPS = 1000  # to which loads are rounded, so that few are computed
_BISECTIONS = 30


def inline_wait_ms(full_ms: float, rate_per_s: float) -> float:
    """What all but one in a hundred rankings would wait at most.

    Args:
        full_ms: of a pass like the one in question.
        rate_per_s: of rankings at one model slot.
    """
    load = rate_per_s * full_ms / 1000
    return full_ms * wait_passes(round(load * _STEPS) / _STEPS) if load > 0 else 0.0


@lru_cache(maxsize=2048)
def wait_passes(load: float, miss: float = 0.01) -> float:
    """The wait that a share `miss` of arrivals exceeds, in passes; of independent arrivals, and equal passes.

    P(W <= t) = (1 - load) sum over k <= t of (load (k - t))^k / k! exp(-load (k - t)) (Erlang, M/D/1).
    Infinite where it is longer than `_LONGEST_PASSES` or the slot is full.
    """
    if load >= _FULL:
        return math.inf

    def within(t: float) -> float:
        terms = (
            (load * (k - t)) ** k / math.factorial(k) * math.exp(load * (t - k)) for k in range(int(t) + 1)
        )
        return (1 - load) * sum(terms)

    if within(0.0) >= 1 - miss:
        return 0.0
    low, high = 0.0, 1.0
    while within(high) < 1 - miss:
        low, high = high, high + 1
        if high > _LONGEST_PASSES:
            return math.inf
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) >= 1 - miss else (middle, high)
    return high
