"""What became of requests of two laps: who answered, what failed, what hung, and who moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request of a user.

    Attributes:
        took_ms: the ranking, from when it was sent.
        first, second: the members that answered the two laps; None without an answer.
        path: of the ranking; empty if it failed.
        error: what the client raised, after its retries; empty if nothing.
    """

    user: str
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
