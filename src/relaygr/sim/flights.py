"""Prefixes on their way into an instance's memory, between their runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from relaygr.cache.interface import LoadPlan
from relaygr.sim.chunks import ChunkPlan
from relaygr.sim.visit import Visit


class Flight(msgspec.Struct, eq=False):
    """One pre-inference; what host memory has of the prefix is copied before anything is computed.

    Attributes:
        target: tokens to be present at its end; `done` are, as far as is known.
        deadline_s: earliest first; `queued_s`: when it came.
        reloading: it copies, or will first.
        load, load_left: the copy that was begun, and the seconds of it that are left.
        spent_s: time of a slot that its chunks took.
        wanted: False when ranking has computed the rest, or nobody waits any more.
        running: it has a slot now; `ranked`: a ranking of the user has begun since.
        plan, ends_s: of the run that is going on.
        ends_at_s: when the copy that runs will end, if nothing cuts it.
        visits: whose rankings it is for; `waiting` are those that are due and wait for its copy.
    """

    user: int
    target: int
    deadline_s: float
    queued_s: float
    done: int = 0
    reloading: bool = False
    load: LoadPlan | None = None
    load_left_s: float = 0.0
    began: bool = False
    spent_s: float = 0.0
    wanted: bool = True
    running: bool = False
    ranked: bool = False
    plan: ChunkPlan = ChunkPlan((), ())
    ends_s: tuple[float, ...] = ()
    ends_at_s: float = 0.0
    visits: list[Visit] = []
    waiting: list[Visit] = []


class FlightQueue:
    """Copies first, then the earliest deadline; at most one flight of a user."""

    __slots__ = ("_arrivals", "_heap", "_of_user")

    def __init__(self) -> None:
        self._heap: list[tuple[bool, float, int, Flight]] = []
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
        """A new flight, or one whose run has ended."""
        self._of_user[flight.user] = flight
        self._arrivals += 1
        heapq.heappush(self._heap, (not flight.reloading, flight.deadline_s, self._arrivals, flight))

    def take(self, reloading: bool) -> Flight | None:
        """The most urgent that is to copy, or to compute, and waits for that; it stays the user's flight."""
        heap = self._heap
        while heap:
            computes, _, _, flight = heap[0]
            stale = not flight.wanted or flight.running or flight.reloading is computes
            if not stale and computes is reloading:
                return None  # copies come first, so that there is none
            heapq.heappop(heap)
            if not stale:
                return flight
        return None

    def end(self, flight: Flight) -> None:
        """It is done, or nobody wants it."""
        flight.wanted = False
        if self._of_user.get(flight.user) is flight:
            del self._of_user[flight.user]
