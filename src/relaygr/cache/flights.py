"""Transfers between the tiers that were begun and not yet completed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from relaygr.cache.entry import Entry, Identity
from relaygr.cache.host import HostEntry
from relaygr.cache.interface import LoadPlan, StorePlan
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.runs import Run

Plan = LoadPlan | StorePlan


@dataclass(slots=True, eq=False)
class Load:
    """The write lease on the device pages, and the entry that is read, pinned."""

    plan: LoadPlan
    lease: WriteLease
    source: HostEntry

    @property
    def cancelled(self) -> bool:
        return self.lease.cancelled


@dataclass(slots=True, eq=False)
class Store:
    """The read lease on the device pages, the entry as it was at the start, the chunks reserved for it, and
    the pinned entry that will grow by them, if they are not an entry of their own.
    """

    plan: StorePlan
    lease: ReadLease
    entry: Entry
    runs: tuple[Run, ...]
    base: HostEntry | None = None
    cancelled: bool = field(default=False, init=False)


class Flights:
    """Transfers by ticket, and the one of each identity whose result may still become visible.

    A cancelled transfer keeps its ticket, its pages and its chunks until it lands; its identity is free for
    the next one at once.
    """

    def __init__(self) -> None:
        self._flights: dict[int, Load | Store] = {}
        self._moving: dict[Identity, int] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: Identity) -> bool:
        return key in self._moving

    def next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def launch(self, flight: Load | Store) -> None:
        self._flights[flight.plan.ticket] = flight
        self._moving[flight.lease.identity] = flight.plan.ticket

    def land(self, plan: Plan) -> Load | Store | None:
        """End a transfer; None if it is unknown or has ended already."""
        flight = self._flights.pop(plan.ticket, None)
        if flight is not None and self._moving.get(flight.lease.identity) == plan.ticket:
            del self._moving[flight.lease.identity]
        return flight

    def cancel(self, which: Callable[[Identity], bool]) -> None:
        """Nothing of these becomes visible; the books tell a load by its lease."""
        for key in [key for key in self._moving if which(key)]:
            flight = self._flights[self._moving.pop(key)]
            if isinstance(flight, Store):
                flight.cancelled = True

    def running(self, plan: Plan) -> bool:
        flight = self._flights.get(plan.ticket)
        return flight is not None and flight.lease.live and not flight.cancelled

    def overdue(self) -> list[Load | Store]:
        """Those whose lease has ended under them."""
        return [flight for flight in self._flights.values() if not flight.lease.live]

    def stores(self) -> Iterator[Store]:
        return (flight for flight in self._flights.values() if isinstance(flight, Store))

    def audit(self) -> None:
        """Check that the two views agree; for tests."""
        for key, ticket in self._moving.items():
            flight = self._flights[ticket]
            assert flight.lease.identity == key, "transfers by identity"
            assert not flight.cancelled, "cancelled, yet in the way of the next"
