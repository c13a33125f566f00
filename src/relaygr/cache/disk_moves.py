"""Transfers between host memory and disk: what is written, what may be read, when it becomes visible."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from relaygr.cache.disk import DiskBooks
from relaygr.cache.disk_entry import DiskEntry, Place
from relaygr.cache.entry import Identity, identity
from relaygr.cache.host import HostBooks, HostEntry
from relaygr.cache.interface import Cause, DiskStats, HostRun, PageSum, Reason, Refused
from relaygr.cache.runs import Run
from relaygr.core.state import Ref


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Bring an entry from `runs` of host memory to a place on disk, as record `number`."""

    ticket: int
    number: int
    ref: Ref
    runs: tuple[HostRun, ...]
    place: Place
    layout_id: str
    sums: tuple[PageSum, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Bring an entry from its place on disk to `runs` of host memory."""

    ticket: int
    number: int
    ref: Ref
    place: Place
    runs: tuple[HostRun, ...]


@dataclass(slots=True, eq=False)
class _Save:
    plan: SavePlan
    source: HostEntry
    cancelled: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class _Fetch:
    plan: FetchPlan
    source: DiskEntry
    runs: tuple[Run, ...]
    cancelled: bool = field(default=False, init=False)


class DiskMoves:
    """One save or fetch per identity at a time, and which host entries the disk has, too: they are clean.

    Changes: a plan keeps its source and its room until `complete_*`, which says whether the result is
    visible now; again, or for what was cancelled, it says False. Entries move whole.
    "No" is a `Refused`, and then nothing changed.

    Attributes:
        damaged, torn, failures, off: what whoever moves the bytes knows of the files; see `DiskStats`.
    """

    def __init__(self, host: HostBooks, disk: DiskBooks, on_device: Callable[[Ref], int]) -> None:
        """`on_device` tells how much of a content the device has."""
        self._host, self._disk, self._on_device = host, disk, on_device
        self._moving: dict[Identity, _Save | _Fetch] = {}
        self._flights: dict[int, _Save | _Fetch] = {}
        self._tickets = 0
        self._dirty: OrderedDict[Identity, HostEntry] = OrderedDict()  # in the order in which they came
        self._clean: dict[Identity, HostEntry] = {}
        self.clean_chunks = 0
        self.changes = 0  # of what could be written; counted, so that nobody looks in vain again and again
        self.saves = self.fetches = self.refused = 0
        self.damaged = self.torn = self.failures = 0
        self.off = ""
        host.on_put, host.on_remove = self._came, self._left
        disk.on_put, disk.on_left = self._written, self._lost
        for entry in host.entries():
            self._came(entry)

    def __len__(self) -> int:
        return len(self._flights)

    def short_of(self, share: float) -> bool:
        """Whether fewer chunks than this share are free or clean, and something could be done about it."""
        safe = self._host.free_chunks + self.clean_chunks
        return bool(self._dirty) and safe < share * self._host.total_chunks

    def next_dirty(self) -> HostEntry | None:
        """The host entry to be written next: the one that has been there longest, since it leaves soonest.

        What is on the device lives there, so that an entry here is used no more after it came.
        """
        return next((entry for key, entry in self._dirty.items() if key not in self._moving), None)

    def prepare_save(self, entry: HostEntry, nbytes: int) -> SavePlan | Refused:
        """Pin a host entry, and make room for a record of so many bytes; one without room is not asked again.

        Refused: not_resident, busy, too_large, pinned.
        """
        key = identity(entry.ref)
        if not entry.visible:
            return Refused(Reason.NOT_RESIDENT)
        if key in self._moving:
            return Refused(Reason.BUSY)
        kept = self._disk.reserve((key.tenant, key.user), nbytes)
        if kept is None:
            self._dirty.pop(key, None)
            self.changes += 1
            self.refused += 1
            return Refused(Reason.TOO_LARGE if nbytes > self._disk.total_bytes else Reason.PINNED)
        self._host.pin(entry)
        number, place = kept
        runs = self._host.host_runs(entry.runs, entry.tokens)
        plan = SavePlan(self._ticket(), number, entry.ref, runs, place, entry.layout_id, entry.sums)
        self._flights[plan.ticket] = self._moving[key] = _Save(plan, entry)
        return plan

    def complete_save(self, plan: SavePlan, ok: bool) -> bool:
        flight = self._land(plan.ticket)
        if not isinstance(flight, _Save):
            return False
        self._host.unpin(flight.source)
        if not ok or flight.cancelled:
            if self._dirty.get(identity(plan.ref)) is flight.source:
                del self._dirty[identity(plan.ref)]  # else it would be tried for ever
            self._disk.give_back(plan.place)
            return False
        kept = self._disk.put(DiskEntry(plan.ref, plan.place, plan.number, plan.layout_id, plan.sums))
        self.saves += kept
        return kept

    def fetchable(self, ref: Ref) -> int:
        """Tokens of `ref` that only the disk has so many of; 0 if it has no more than the others."""
        disk = self._disk.match(ref)
        return disk if disk > max(self._host.match(ref), self._on_device(ref)) else 0

    def prepare_fetch(self, ref: Ref) -> FetchPlan | Refused:
        """Pin the entry of `ref`'s identity, which has more of it than the tiers above, and make room.

        Refused: not_resident, busy, too_large, pinned.
        """
        key = identity(ref)
        if key in self._moving:
            return Refused(Reason.BUSY)
        source = self._disk.get(key)
        if source is None or not self.fetchable(ref):
            return Refused(Reason.NOT_RESIDENT)
        if self._host.chunks_for(source.tokens) > self._host.total_chunks:
            return Refused(Reason.TOO_LARGE)
        runs = self._host.reserve(source.tokens)
        if runs is None:
            return Refused(Reason.PINNED)
        self._disk.pin(source.place)
        host_runs = self._host.host_runs(runs, source.tokens)
        plan = FetchPlan(self._ticket(), source.number, source.ref, source.place, host_runs)
        self._flights[plan.ticket] = self._moving[key] = _Fetch(plan, source, runs)
        return plan

    def complete_fetch(self, plan: FetchPlan, ok: bool, damaged: bool = False) -> bool:
        """False also when the tiers above have got as much meanwhile. `damaged` drops the source."""
        flight = self._land(plan.ticket)
        if not isinstance(flight, _Fetch):
            return False
        source, key = flight.source, identity(plan.ref)
        if damaged and source.visible:
            self._disk.drop(key, Cause.DAMAGED)
        self.damaged += damaged
        self._disk.unpin(source.place)
        above = max(self._host.match(plan.ref), self._on_device(plan.ref))
        if not ok or damaged or flight.cancelled or above >= source.tokens:
            self._host.give_back(flight.runs)
            return False
        self._host.put(HostEntry(source.ref, flight.runs, source.layout_id, source.sums))
        self._disk.touch(key)
        self.fetches += 1
        return True

    def running(self, plan: SavePlan | FetchPlan) -> bool:
        """Whether the result may still become visible; if not, `complete_*` is due."""
        flight = self._flights.get(plan.ticket)
        return flight is not None and not flight.cancelled

    def cancel(self, which: Callable[[Identity], bool]) -> None:
        """Nothing of these becomes visible; their identities are free at once."""
        for key in [key for key in self._moving if which(key)]:
            self._moving.pop(key).cancelled = True

    def stats(self) -> DiskStats:
        disk = self._disk
        return DiskStats(
            total_bytes=disk.total_bytes,
            used_bytes=disk.used_bytes,
            live_bytes=disk.live_bytes,
            index_bytes=disk.index_bytes,
            segments=disk.segments,
            entries=len(disk),
            saves=self.saves,
            fetches=self.fetches,
            evictions=disk.evictions,
            moving=len(self),
            damaged=self.damaged,
            torn=self.torn,
            refused=self.refused,
            failures=self.failures,
            off=self.off,
            departures=tuple(disk.departed.items()),
        )

    def audit(self) -> None:
        """Check the counters against a count from scratch; for tests."""
        self._disk.audit()
        assert self.clean_chunks == sum(entry.chunks for entry in self._clean.values()), "clean chunks"
        assert not self._clean.keys() & self._dirty.keys(), "clean and dirty"
        for key, entry in (*self._clean.items(), *self._dirty.items()):
            assert self._host.get(key) is entry, "an entry that is not in the host"
        for entry in self._clean.values():
            assert self._disk.match(entry.ref) == entry.tokens, "clean, but not on disk"

    def close(self) -> None:
        """The tier is over: nothing becomes visible, and nobody is told anything any more."""
        self.cancel(lambda _: True)
        for flight in tuple(self._flights.values()):
            if isinstance(flight, _Save):
                self.complete_save(flight.plan, ok=False)
            else:
                self.complete_fetch(flight.plan, ok=False)
        self._host.on_put = self._host.on_remove = None

    def _land(self, ticket: int) -> _Save | _Fetch | None:
        flight = self._flights.pop(ticket, None)
        self.changes += 1
        if flight is not None and not flight.cancelled:
            del self._moving[identity(flight.plan.ref)]
        return flight

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _came(self, entry: HostEntry) -> None:
        key = identity(entry.ref)
        self.changes += 1
        if self._disk.match(entry.ref) == entry.tokens:
            self._clean[key] = entry
            self.clean_chunks += entry.chunks
        else:
            self._dirty[key] = entry

    def _left(self, entry: HostEntry) -> None:
        key = identity(entry.ref)
        self.changes += 1
        self._dirty.pop(key, None)
        if self._clean.pop(key, None) is not None:
            self.clean_chunks -= entry.chunks

    def _written(self, entry: DiskEntry) -> None:
        above = self._host.get(identity(entry.ref))
        if above is not None:
            self._left(above)
            self._came(above)

    def _lost(self, entry: DiskEntry) -> None:
        # It is not written again: where the disk is smaller than what is to be safe that would never end.
        above = self._clean.get(identity(entry.ref))
        if above is not None:
            self._left(above)
