"""How a ranking is served in the time that is left: whole, with less history, or without any."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relaygr.relay.latency import LatencyModel

_LITTLE_MORE = 2.0  # times the last resort


class Step(StrEnum):
    """From the best to the last resort; the first two score the whole history."""

    RESUME = "resume"  # what is cached, if anything is, and the rest computed
    FULL = "full"  # everything computed
    TRUNCATED = "truncated"  # the newest part of the history, computed
    DEGRADED = "degraded"  # no history


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do, and the history tokens that are scored."""

    step: Step
    tokens: int


def choose(
    latency: LatencyModel,
    *,
    tokens: int,
    cached: int,
    candidates: int,
    left_ms: float,
    guard_ms: float,
    bucket_tokens: int,
) -> Choice:
    """The best that fits.

    The whole history is tried where every second pass would be in time: a shortened answer is never a whole
    one, a late whole one is only late; and where it costs hardly more than no history at all, whatever the
    time. What is shortened is shortened for the 99th percentile. A part of the
    history shares nothing with a cached prefix, so that it is computed from its beginning.

    Args:
        tokens, cached: of the history, and how many are cached.
        left_ms, guard_ms: until the answer is due, and what is kept back of that.
        bucket_tokens: a shortened history is a multiple of this.
    """
    usable_ms = left_ms - guard_ms
    whole_ms = latency.coefficients.pass_ms(tokens - cached, cached, candidates)
    least_ms = latency.coefficients.pass_ms(0, 0, candidates)
    usual_ms = latency.usual_ms(tokens - cached, cached, candidates)
    if tokens == cached or usual_ms <= usable_ms or whole_ms <= _LITTLE_MORE * least_ms:
        return Choice(Step.RESUME if cached else Step.FULL, tokens)
    longest = min(latency.longest_p99(usable_ms, candidates, tokens) or 0, tokens)
    whole = longest // bucket_tokens * bucket_tokens
    return Choice(Step.TRUNCATED if whole else Step.DEGRADED, whole)
