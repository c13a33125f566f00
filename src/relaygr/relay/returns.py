"""How likely a user is to come back soon: by what the user did before, and by what all did."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

U = TypeVar("U", bound=Hashable)

USERS_MAX = 131_072
_PRIOR = 2.0  # visits that what all users do counts for
_HALVE_AT = 1 << 20  # visits of all, so that the share follows the traffic


@dataclass(slots=True)
class _Past:
    visits: int = 0
    returns: int = 0


class Returns(Generic[U]):
    """Counts visits, and those that another of the same user followed within `d_ttl_s`; of so many users.

    A user who was forgotten or not seen for long starts anew, with the chance of all. Of all users only
    visits count of which it is known whether they were followed: otherwise nobody would seem to come back
    for the first `d_ttl_s` of a server's life. O(1) amortised.
    """

    __slots__ = ("_all_returns", "_all_visits", "_d_ttl_s", "_limit", "_open", "_users")

    def __init__(self, d_ttl_s: float, users_max: int = USERS_MAX) -> None:
        """Raises ValueError for a negative time and for a limit below 1."""
        if d_ttl_s < 0:
            raise ValueError(f"d_ttl_s: {d_ttl_s} must not be negative")
        if users_max < 1:
            raise ValueError(f"users_max: {users_max} must be at least 1")
        self._d_ttl_s, self._limit = d_ttl_s, users_max
        self._users: OrderedDict[U, _Past] = OrderedDict()
        self._open: OrderedDict[U, float] = OrderedDict()  # last visits that may still be followed in time
        self._all_visits = self._all_returns = 0

    def __len__(self) -> int:
        return len(self._users)

    def visit(self, user: U, now_s: float) -> None:
        """The user is here."""
        self._close(now_s)
        past = self._users.pop(user, None)
        if past is None:
            past = _Past()
            if len(self._users) >= self._limit:
                self._open.pop(self._users.popitem(last=False)[0], None)
        elif self._open.pop(user, None) is not None:
            past.returns += 1
            self._count(1)
        past.visits += 1
        self._users[user], self._open[user] = past, now_s

    def p0(self, now_s: float) -> float:
        """The share of visits of all that were followed in time; 1 before any is known."""
        self._close(now_s)
        return self._all_returns / self._all_visits if self._all_visits else 1.0

    def p_return(self, user: U, now_s: float) -> float:
        """The chance that the user comes back in time: (returns + 2 p0) / (visits + 2)."""
        past = self._users.get(user)
        p0 = self.p0(now_s)
        return p0 if past is None else (past.returns + _PRIOR * p0) / (past.visits + _PRIOR)

    def forget(self, user: U) -> None:
        self._users.pop(user, None)
        self._open.pop(user, None)

    def _close(self, now_s: float) -> None:
        """Visits whose time is over were not followed."""
        while self._open:
            user = next(iter(self._open))
            if now_s - self._open[user] <= self._d_ttl_s:
                return
            del self._open[user]
            self._count(0)

    def _count(self, followed: int) -> None:
        self._all_visits += 1
        self._all_returns += followed
        if self._all_visits >= _HALVE_AT:
            self._all_visits //= 2
            self._all_returns //= 2
