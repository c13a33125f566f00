"""What the two halves of an ingress tell each other: who is there, and where a call is to go.

The cluster's router lives in the ingress's process, but on an event loop in a thread of its own.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


class WithdrawnError(Exception):
    """The call goes to nobody; `full` if its replica has no room for it."""

    def __init__(self, reason: str, *, full: bool = False) -> None:
        super().__init__(reason)
        self.full = full


@dataclass(slots=True)
class Ticket:
    """One call on its way to one replica.

    Attributes:
        wanted: the only replica that may get it.
        offered: whether it may have been sent.
        taken: gives the call up, from the moment that the replica has accepted it.
    """

    wanted: str
    offered: bool = False
    taken: Callable[[], None] | None = None


@dataclass(slots=True)
class _Present:
    names: frozenset[str] = frozenset()
    died: set[str] = field(default_factory=set)


class Roster:
    """Replicas that there are, and calls on their way. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present = _Present()
        self._tickets: dict[int, Ticket] = {}
        self._numbers = itertools.count(1)
        self._tell: Callable[[], object] | None = None

    def __len__(self) -> int:
        """Calls on their way."""
        return len(self._tickets)

    def listen(self, tell: Callable[[], object]) -> None:
        """`tell` is called, in any thread, whenever `present` or `died` is another."""
        with self._lock:
            self._tell = tell

    @property
    def present(self) -> frozenset[str]:
        """Replicas that the cluster says are running."""
        with self._lock:
            return self._present.names

    def take_died(self) -> frozenset[str]:
        """Replicas that were found dead since the last time."""
        with self._lock:
            died, self._present.died = self._present.died, set()
            return frozenset(died)

    def update(self, names: frozenset[str]) -> None:
        """These are running now."""
        with self._lock:
            self._present.names = names
            tell = self._tell
        if tell is not None:
            tell()

    def die(self, name: str) -> None:
        """This one was found dead, before the cluster says so."""
        with self._lock:
            self._present.died.add(name)
            tell = self._tell
        if tell is not None:
            tell()

    def open(self, wanted: str) -> tuple[int, Ticket]:
        """A call begins; `close` must be called with its number."""
        number, ticket = next(self._numbers), Ticket(wanted)
        with self._lock:
            self._tickets[number] = ticket
        return number, ticket

    def close(self, number: int) -> None:
        with self._lock:
            self._tickets.pop(number, None)

    def ticket(self, number: int) -> Ticket | None:
        """None once the call is closed."""
        with self._lock:
            return self._tickets.get(number)


@functools.cache
def the_roster() -> Roster:
    """The one of this process, which is one ingress."""
    return Roster()
