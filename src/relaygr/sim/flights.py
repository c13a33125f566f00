"""Prefixes on their way into an instance's memory, between their runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from relaygr.sim.chunks import ChunkPlan
from relaygr.sim.visit import Visit


@dataclass(slots=True, eq=False)
class Flight:
    """One pre-inference.

    Attributes:
        target: tokens to be present at its end.
        deadline_s: earliest first.
        began_s, spent_s: when its first chunk began, and the slot's time it took; 0 before.
        computed: tokens of its chunks.
        wanted: False when ranking has computed the rest, or nobody waits any more.
        plan, done: of the run that is going on: its chunks, and the tokens before the first.
    """

    user: int
    target: int
    deadline_s: float
    queued_s: float
    generation: int = 0
    began_s: float = 0.0
    spent_s: float = 0.0
    computed: int = 0
    chunks: int = 0
    wanted: bool = True
    running: bool = False
    visits: list[Visit] = field(default_factory=list)
    plan: ChunkPlan = field(default=ChunkPlan((), ()))
    done: int = 0


class FlightQueue:
    """Earliest deadline first; at most one flight of a user."""

    __slots__ = ("_arrivals", "_heap", "_of_user")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Flight]] = []
        self._of_user: dict[int, Flight] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        """Flights on their way, the running ones among them."""
        return len(self._of_user)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._of_user.values())

    def of(self, user: int) -> Flight | None:
        return self._of_user.get(user)

    def put(self, flight: Flight) -> None:
        """A new flight, or one whose run was cut."""
        self._of_user[flight.user] = flight
        self._arrivals += 1
        heapq.heappush(self._heap, (flight.deadline_s, self._arrivals, flight))

    def take(self) -> Flight | None:
        """The most urgent that is wanted and does not run; it stays the user's flight."""
        while self._heap:
            flight = heapq.heappop(self._heap)[2]
            if flight.wanted and not flight.running:
                return flight
        return None

    def end(self, flight: Flight) -> None:
        """It is done, or nobody wants it."""
        flight.wanted = False
        if self._of_user.get(flight.user) is flight:
            del self._of_user[flight.user]
