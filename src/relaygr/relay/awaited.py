"""Prefixes that were admitted and whose rankings are still to come: load that no open request shows."""

from __future__ import annotations

import math
from collections import OrderedDict

AWAITED_MAX = 65_536


class Awaited:
    """Member by user, until the ranking comes or the time between two laps is over; bounded."""

    __slots__ = ("_limit", "_next_s", "_t_life_s", "_waiting")

    def __init__(self, t_life_s: float, limit: int = AWAITED_MAX) -> None:
        self._t_life_s, self._limit = t_life_s, limit
        # Every wait is as long as any other, so that the first to come is the first to end.
        self._waiting: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._next_s = math.inf  # no wait ends earlier

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: str, member: str, now_s: float) -> str | None:
        """The member whose wait this one ends: the user's before, or the oldest where there are too many."""
        before = self._waiting.pop(key, None)
        end_s = now_s + self._t_life_s
        self._waiting[key] = member, end_s
        self._next_s = min(self._next_s, end_s)
        if before is None and len(self._waiting) > self._limit:
            _, before = self._waiting.popitem(last=False)
        return None if before is None else before[0]

    def take(self, key: str) -> str | None:
        """The member, whose wait is over; None if nothing was awaited."""
        found = self._waiting.pop(key, None)
        return None if found is None else found[0]

    def expire(self, now_s: float) -> list[str]:
        """Members whose rankings did not come in time, each once for each."""
        expired: list[str] = []
        while now_s >= self._next_s:
            key, (member, end_s) = next(iter(self._waiting.items()), ("", ("", math.inf)))
            if end_s <= now_s:
                del self._waiting[key]
                expired.append(member)
            else:
                self._next_s = end_s
        return expired
