"""Prefixes held for rankings on their way: the real book of holds, and leases that keep the pages."""

from __future__ import annotations

from collections.abc import Iterator

from relaygr.cache.lease import ReadLease
from relaygr.relay.holds import HoldBook, Left
from relaygr.sim.shelf import Shelf
from relaygr.sim.visit import Visit

# Holds end by themselves; a lease that outlives its hold by so much was forgotten.
_LEASE_LIVES = 4.0


class Keeper:
    """Holds of one instance, by user number."""

    __slots__ = ("_leases", "holds", "shelf")

    def __init__(self, shelf: Shelf, holds: HoldBook[int]) -> None:
        self.shelf, self.holds = shelf, holds
        self._leases: dict[int, ReadLease] = {}

    def ready(self, user: int, tokens: int, now_s: float) -> None:
        """The prefix of an admitted signal is on the device."""
        self.keep(user, tokens, now_s)
        if self.held(user) < tokens:
            self.cancel(user)
        else:
            self.holds.ready(user, now_s)

    def keep(self, user: int, tokens: int, now_s: float) -> None:
        """So many tokens of the prefix are on the device, and stay there while it is held, if it still is."""
        if self.holds.state(user) is None:
            return
        until_s = now_s + _LEASE_LIVES * self.holds.t_life_s
        lease = self.shelf.hold(user, tokens, until_s, now_s)
        self._drop(user)
        if lease is not None:
            self._leases[user] = lease

    def users(self) -> Iterator[int]:
        """Whose prefixes are kept."""
        return iter(self._leases)

    def held(self, user: int) -> int:
        """Tokens of the user's prefix that are kept on the device for its rankings."""
        lease = self._leases.get(user)
        return lease.tokens if lease is not None else 0

    def pin(self, visit: Visit, now_s: float) -> None:
        """A ranking begins; a prefix that is ready stays until it has read it."""
        if not visit.claimed:
            visit.claimed = self.holds.claim(visit.user, now_s)  # else it would take that of another request
        visit.pinned = self.holds.pin(visit.user)

    def unpin(self, visit: Visit, now_s: float) -> bool:
        """The ranking has ended; whether it was the last that wanted the prefix."""
        if not visit.pinned:
            return self.withdraw(visit, now_s)
        visit.pinned = visit.claimed = False
        return self._gone(self.holds.unpin(visit.user, now_s))

    def withdraw(self, visit: Visit, now_s: float) -> bool:
        """The request of this claim ends without the prefix; whether that ended the hold."""
        if not visit.claimed:
            return False
        visit.claimed = False
        return self._gone(self.holds.release(visit.user, now_s))

    def cancel(self, user: int) -> bool:
        """A production or reload came to nothing."""
        return self._gone(self.holds.cancel(user))

    def forget(self, user: int) -> None:
        """Nothing that is held of the user counts any more."""
        self.holds.forget(user)
        self._drop(user)

    def forget_all(self) -> None:
        for user in list(self._leases):
            self.forget(user)

    def expire(self, now_s: float) -> list[Left[int]]:
        """Holds whose time is over."""
        left = self.holds.expire(now_s)
        for gone in left:
            self._drop(gone.key)
        return left

    def _gone(self, left: Left[int] | None) -> bool:
        if left is None:
            return False
        self._drop(left.key)
        return True

    def _drop(self, user: int) -> None:
        lease = self._leases.pop(user, None)
        if lease is not None:
            lease.release()
