"""What ranking does when the prefix of its user is not there: the longest history its budget allows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relaygr.relay.latency import LatencyModel


class Step(StrEnum):
    """Of the ladder, best first; RESUME and FULL give the scores of a hit, the others are flagged."""

    RESUME = "resume"
    FULL = "full"
    TRUNCATED = "truncated"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Choice:
    """A step, and how many of the newest history tokens it reads; DEGRADED reads none."""

    step: Step
    tokens: int


def choose(
    missing_tokens: int,
    cached_tokens: int,
    candidates: int,
    remaining_ms: float,
    latency: LatencyModel | None,
    guard_ms: float,
    bucket_tokens: int,
    shorten: bool = True,
) -> Choice:
    """The first step that is done in time.

    Args:
        missing_tokens, cached_tokens: of the whole history, those to compute and those found, from its start.
        candidates: to be scored.
        remaining_ms: of the request's budget.
        latency: of the build; None, if it was never measured, reads everything.
        guard_ms: kept back from the budget.
        bucket_tokens: a shortened history is a multiple of this, and at least this.
        shorten: False reads everything, in time or not.
    """
    whole = missing_tokens + cached_tokens
    everything = Choice(Step.RESUME if cached_tokens else Step.FULL, whole)
    if latency is None or not shorten:
        return everything
    budget_ms = remaining_ms - guard_ms
    # Computing the rest behind what is there; without anything there, that is everything.
    if latency.hit_p99_ms(cached_tokens, missing_tokens, candidates) <= budget_ms:
        return everything
    longest = latency.longest_p99(budget_ms, candidates, whole)
    tokens = 0 if longest is None else longest // bucket_tokens * bucket_tokens
    return Choice(Step.TRUNCATED, tokens) if tokens else Choice(Step.DEGRADED, 0)
