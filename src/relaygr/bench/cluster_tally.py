"""What became of requests of two laps: who answered, what failed, what hung, and who moved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request of a user.

    Attributes:
        at_s: when it ended.
        took_ms: the ranking, from when it was sent.
        first, second: the members that answered the two laps; None without an answer.
        path: of the ranking; empty if it failed.
        error: what the client raised, after its retries; empty if nothing.
    """

    user: str
    at_s: float
    took_ms: float
    first: str | None = None
    second: str | None = None
    path: str = ""
    error: str = ""


def affinity_share(visits: Iterable[Visit]) -> float | None:
    """Of visits with two answers, those where one member gave both; None if there are none."""
    both = [one for one in visits if one.first is not None and one.second is not None]
    return sum(one.first == one.second for one in both) / len(both) if both else None


def failed(visits: Iterable[Visit]) -> int:
    return sum(bool(one.error) for one in visits)


def hung(visits: Iterable[Visit], budget_ms: float) -> int:
    """Those that took longer than they were given, answered or not."""
    return sum(one.took_ms > budget_ms for one in visits)


def hit_share(visits: Sequence[Visit]) -> float | None:
    """Of rankings that were answered, those that found their prefix; None if there are none."""
    answered = [one for one in visits if one.path]
    return sum(one.path == "hit" for one in answered) / len(answered) if answered else None


def owners(visits: Iterable[Visit]) -> dict[str, str]:
    """Who ranked each user last."""
    return {one.user: one.second for one in visits if one.second is not None}


def moved_share(before: Mapping[str, str], after: Mapping[str, str]) -> float | None:
    """Of users in both, those with another owner; None if there are none."""
    both = before.keys() & after.keys()
    return sum(before[user] != after[user] for user in both) / len(both) if both else None


def unsettled_s(visits: Iterable[Visit], since_s: float) -> float:
    """From `since_s` to the end of the last visit that failed, was split or did not hit; 0 without any."""
    bad = [one.at_s for one in visits if one.error or one.first != one.second or one.path != "hit"]
    return max(0.0, max(bad, default=since_s) - since_s)


def percentile_ms(visits: Sequence[Visit], share: float) -> float:
    """Of the times of rankings, answered or not: the nearest rank at `share`; 0 without visits."""
    ordered = sorted(one.took_ms for one in visits)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
