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
    last_s: float
    visits: int = 1
    returns: int = 0


class Returns(Generic[U]):
    """Counts visits, and those that came within `d_ttl_s` of the one before; of a bounded number of users.

    A user who was forgotten or not seen for long starts anew, with the chance of all.
    """

    __slots__ = ("_all_returns", "_all_visits", "_d_ttl_s", "_limit", "_users")

    def __init__(self, d_ttl_s: float, users_max: int = USERS_MAX) -> None:
        """Raises ValueError for a limit below 1."""
        if users_max < 1:
            raise ValueError(f"users_max: {users_max} must be at least 1")
        self._d_ttl_s, self._limit = d_ttl_s, users_max
        self._users: OrderedDict[U, _Past] = OrderedDict()
        self._all_visits = self._all_returns = 0

    def __len__(self) -> int:
        return len(self._users)

    @property
    def overall(self) -> float:
        """Share of visits that were followed by another of the same user in time; 1 before any."""
        return self._all_returns / self._all_visits if self._all_visits else 1.0

    def visit(self, user: U, now_s: float) -> None:
        """The user is here."""
        past = self._users.pop(user, None)
        if past is None:
            past = _Past(now_s)
            if len(self._users) >= self._limit:
                self._users.popitem(last=False)
        else:
            # A visit counts when it is known whether it was followed: with the next one, or never.
            came_back = now_s - past.last_s <= self._d_ttl_s
            past.returns += came_back
            self._all_returns += came_back
            past.visits += 1
            past.last_s = now_s
        self._users[user] = past
        self._all_visits += 1
        if self._all_visits >= _HALVE_AT:
            self._all_visits //= 2
            self._all_returns //= 2

    def chance(self, user: U) -> float:
        """That the user comes back within `d_ttl_s`: (returns + 2 p0) / (visits + 2), p0 that of all."""
        past = self._users.get(user)
        if past is None:
            return self.overall
        return (past.returns + _PRIOR * self.overall) / (past.visits + _PRIOR)

    def forget(self, user: U) -> None:
        self._users.pop(user, None)
