"""Random operations on the books of two tiers, the bytes of both included, beside a plain model."""

import random
from dataclasses import dataclass, field
from typing import ClassVar

from books_model import BooksModel
from books_state import KEYS, PAGE_TOKENS, TTL_S, Key, Stored, key_of, rows_of
from cache_content import oracle

from relaygr.cache.host import HEADROOM, ROOMY
from relaygr.cache.interface import HostRun, LoadPlan, Reason, Refused, StorePlan
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Hit, Miss, Ref

CHUNK = 8
PAGE_BYTES = 64


@dataclass(eq=False)
class Hosted:
    ref: Ref
    runs: tuple[HostRun, ...]
    last_use: int

    @property
    def chunks(self) -> set[int]:
        return {
            chunk
            for run in self.runs
            for chunk in range(run.offset // CHUNK, -(-(run.offset + run.tokens) // CHUNK))
        }


@dataclass(eq=False)
class Flight:
    plan: LoadPlan | StorePlan
    lease: ReadLease | WriteLease
    rows: list[int]
    source: Hosted | Stored
    moved: int
    cancelled: bool = False
    base: Hosted | None = None  # the entry that a store makes longer

    @property
    def done(self) -> bool:
        return self.moved == self.plan.start + self.plan.tokens


@dataclass
class TieredModel(BooksModel):
    BOOKS: ClassVar[type[TieredBooks]] = TieredBooks

    chunks: int = 12
    hosted: dict[Key, Hosted] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)

    def make_books(self) -> TieredBooks:
        self.host_slots = [-1] * (self.chunks * CHUNK)
        self.tiers = self.BOOKS(
            self.pages,
            PAGE_TOKENS,
            PAGE_BYTES,
            TTL_S,
            host_bytes=self.chunks * CHUNK // PAGE_TOKENS * PAGE_BYTES,
            run_chunk_tokens=CHUNK,
        )
        return self.tiers

    # --- transfers ---

    def load(self) -> None:
        ref = self.ref(
            self.rng.choice([key[:2] + key[3:] for key in self.hosted] or KEYS), self.rng.random() < 0.3
        )
        key, device, host = key_of(ref), self.usable(ref), self.host_usable(ref)
        tokens = self.rng.choice([host, host, self.rng.randint(1, host + 1)]) or 1
        before, need = self.books.stats(), -(-tokens // PAGE_TOKENS)
        victims = {k: e for k, e in self.stored.items() if k != key and not self.is_pinned(e)}
        got = self.books.prepare_load(ref, tokens, self.now_s, self.deadline())
        gone = {k for k in victims if not self.on_device(victims[k].ref)}
        if isinstance(got, Refused):
            assert not gone
            expected = {
                Reason.STALE_MODEL: self.model_fp not in (None, ref.model_fp),
                Reason.BUSY: self.is_moving(key) or self.is_writing(key),
                Reason.NOT_RESIDENT: tokens > host,
                Reason.ALREADY_STORED: tokens <= device,
                Reason.TOO_LARGE: need > self.pages,
                Reason.PINNED: before.free_pages + sum(len(e.pages) for e in victims.values()) < need,
            }
            assert expected[got.reason], got
        else:
            lease = self.tiers._flights._flights[got.ticket].lease
            assert isinstance(lease, WriteLease)
            assert device < tokens <= host
            assert rows_of(got.ref) == rows_of(ref)[:tokens]
            assert (got.start, got.start + got.tokens) == (device, tokens)
            self.check_write(lease, got.ref, device)
            self.check_evictions(lease, victims, gone, before.free_pages)
            source = self.hosted[key]
            assert got.runs == source.runs
            self.flights.append(Flight(got, lease, rows_of(got.ref), source, got.start))
        self.note("load" if isinstance(got, LoadPlan) else f"load {got.reason}")

    def store(self) -> None:
        ref = self.ref(
            self.rng.choice([key[:2] + key[3:] for key in self.stored] or KEYS), self.rng.random() < 0.2
        )
        key, usable = key_of(ref), self.usable(ref)
        tokens = self.rng.choice([usable, usable, self.rng.randint(1, usable + 1)]) or 1
        entry, copy, host = self.stored.get(key), self.hosted.get(key), self.books.stats().host
        assert host is not None
        need = -(-entry.ref.tokens // CHUNK) if entry else 0
        victims = {k: e for k, e in self.hosted.items() if not self.is_read(e)}
        got = self.books.prepare_store(ref, tokens, self.now_s)
        gone = {k for k in victims if not self.in_host(victims[k].ref)}
        if isinstance(got, Refused):
            assert not gone
            expected = {
                Reason.STALE_MODEL: self.model_fp not in (None, ref.model_fp),
                Reason.BUSY: self.is_moving(key) or self.is_writing(key),
                Reason.NOT_RESIDENT: tokens > usable,
                Reason.ALREADY_STORED: entry and copy and oracle(copy.ref, entry.ref) == entry.ref.tokens,
                Reason.TOO_LARGE: need > self.chunks,
                Reason.PINNED: need > host.free_chunks + sum(len(e.chunks) for e in victims.values()),
            }
            assert expected[got.reason], got
        else:
            assert entry is not None
            order = sorted(victims, key=lambda k: victims[k].last_use)
            assert set(order[: len(gone)]) == gone, "not the least recently used"
            if gone:
                all_but_last = sum(len(victims[k].chunks) for k in order[: len(gone) - 1])
                spare = ROOMY * (self.chunks // HEADROOM)
                assert host.free_chunks + all_but_last < need + spare, "more than the shortfall"
            for one in gone:
                del self.hosted[one]
                self.note("host eviction")
            lease = self.tiers._flights._flights[got.ticket].lease
            assert isinstance(lease, ReadLease)
            assert (got.start, got.tokens, got.pages) == (0, entry.ref.tokens, entry.pages)
            assert sum(run.tokens for run in got.runs) == entry.ref.tokens
            self.note("several runs" if len(got.runs) > 1 else "one run")
            self.flights.append(Flight(got, lease, rows_of(entry.ref), entry, 0))
        self.note("store" if isinstance(got, StorePlan) else f"store {got.reason}")

    def step_flight(self) -> None:
        if not self.flights:
            return
        flight = self.rng.choice(self.flights)
        plan = flight.plan
        assert self.tiers.running(plan) == (flight.lease.live and not flight.cancelled)
        if not self.tiers.running(plan):
            return
        end = plan.start + plan.tokens
        upto = self.rng.choice([end, self.rng.randint(flight.moved, end)])
        if isinstance(plan, LoadPlan) and flight.moved == plan.start:
            for src, dst, tokens in plan.copies:
                self.slots[dst] = self.slots[src][:tokens] + [0] * (PAGE_TOKENS - tokens)
        for token in range(flight.moved, upto):
            run = next(run for run in plan.runs if run.start <= token < run.start + run.tokens)
            page, slot, place = (
                plan.pages[token // PAGE_TOKENS],
                token % PAGE_TOKENS,
                run.offset + token - run.start,
            )
            if isinstance(plan, LoadPlan):
                self.slots[page][slot] = self.host_slots[place]
            else:
                self.host_slots[place] = self.slots[page][slot]
        if isinstance(plan, LoadPlan) and upto == end and end % PAGE_TOKENS:
            self.slots[plan.pages[-1]][end % PAGE_TOKENS :] = [0] * (PAGE_TOKENS - end % PAGE_TOKENS)
        flight.moved = upto

    def finish_flight(self) -> None:
        """Complete a transfer that is done, or cancel one at whatever stage it is."""
        if not self.flights:
            return
        flight = self.rng.choice(self.flights)
        if not flight.done and self.tiers.running(flight.plan) and self.rng.random() < 0.7:
            return
        self.flights.remove(flight)
        ok = flight.done and self.rng.random() < 0.9
        if isinstance(flight.plan, LoadPlan):
            self.finish_load(flight, flight.plan, ok)
        else:
            self.finish_store(flight, flight.plan, ok)
        assert not flight.lease.live
        assert not self.tiers.running(flight.plan)

    def cancel_flight(self) -> None:
        """Cancel a transfer at whatever stage it is."""
        if self.flights:
            flight = self.flights.pop(self.rng.randrange(len(self.flights)))
            if isinstance(flight.plan, LoadPlan):
                assert self.books.complete_load(flight.plan, ok=False) is False
            else:
                assert self.books.complete_store(flight.plan, ok=False) is False
            assert not flight.lease.live

    def finish_load(self, flight: Flight, plan: LoadPlan, ok: bool) -> None:
        key, damaged = key_of(plan.ref), self.rng.random() < 0.05
        visible = ok and not damaged and not flight.cancelled
        assert self.books.complete_load(plan, ok, damaged) is visible
        assert self.books.complete_load(plan, ok=True) is False
        if damaged and self.hosted.get(key) is flight.source:
            del self.hosted[key]
            self.note("damaged")
        if visible:
            old = self.stored.get(key)
            self.stored[key] = Stored(plan.ref, plan.pages, old.last_use if old else self.next_use())
            self.published(plan.ref)
        self.note("loaded" if visible else "load cancelled" if flight.cancelled else "load failed")

    def finish_store(self, flight: Flight, plan: StorePlan, ok: bool) -> None:
        key = key_of(plan.ref)
        same = self.stored.get(key) is flight.source
        visible = ok and same and not flight.cancelled
        assert self.books.complete_store(plan, ok) is visible
        assert self.books.complete_store(plan, ok=True) is False
        if visible:
            assert isinstance(flight.source, Stored)
            self.hosted[key] = Hosted(plan.ref, plan.runs, self.next_use())
            if self.is_pinned(flight.source):
                self.note("stored and leased")
            else:
                del self.stored[key]
                self.note("moved")
        self.note("stored" if visible else "store dropped" if ok and not same else "store failed")

    def published(self, ref: Ref) -> None:
        key = key_of(ref)
        copy = self.hosted.get(key)
        if copy and not oracle(copy.ref, ref) == ref.tokens < copy.ref.tokens:
            del self.hosted[key]
            self.note("unneeded copy")

    def spill_candidates(self) -> None:
        target = self.rng.randint(0, self.pages)
        missing = target - self.books.stats().free_pages
        missing -= sum(len(f.plan.pages) for f in self.flights if isinstance(f.plan, StorePlan))
        want = []
        for entry in sorted(self.stored.values(), key=lambda e: e.last_use):
            if missing > 0 and not self.is_pinned(entry):
                missing -= len(entry.pages)
                if self.host_usable(entry.ref) < entry.ref.tokens:
                    want.append(entry.ref)
        assert self.tiers.spill_candidates(target) == want
        self.note("candidates" if want else "no candidates")

    # --- what the other operations mean for the host ---

    def touch(self, ref: Ref) -> None:
        super().touch(ref)
        if key_of(ref) in self.hosted:
            self.hosted[key_of(ref)].last_use = self.next_use()

    def forget(self) -> None:
        who = self.rng.choice(KEYS)[:2]
        mine = {key for key in [*self.stored, *self.hosted] if key[:2] == who}
        assert self.books.forget(Tenant(who[0]), UserId(who[1])) == len(mine)
        for key in mine:
            self.stored.pop(key, None)
            self.hosted.pop(key, None)
        self.cancel_writers(lambda key: key[:2] == who)
        self.cancel_flights(lambda key: key[:2] == who)

    def swap_model(self) -> None:
        super().swap_model()
        for key in [key for key in self.hosted if key[2] != self.model_fp]:
            del self.hosted[key]
        self.cancel_flights(lambda key: key[2] != self.model_fp)

    def cancel_flights(self, match) -> None:
        for flight in self.flights:
            if match(key_of(flight.plan.ref)) and not flight.cancelled:
                flight.cancelled = True
                self.note("cancel in transfer")
                assert not self.tiers.running(flight.plan)

    def sweep(self) -> None:
        super().sweep()
        for flight in [flight for flight in self.flights if not flight.lease.live]:
            self.flights.remove(flight)
            self.note("overdue transfer")
            if isinstance(flight.plan, LoadPlan):
                assert self.books.complete_load(flight.plan, ok=True) is False
            else:
                assert self.books.complete_store(flight.plan, ok=True) is False

    # --- what must always hold ---

    def check(self) -> None:
        super().check()
        reading = self.reading()
        for entry in [*self.hosted.values(), *reading.values()]:
            rows = [self.host_slots[run.offset + i] for run in entry.runs for i in range(run.tokens)]
            assert rows == rows_of(entry.ref), "stale or torn rows in the host"
        holders = self.holders()
        used = set().union(*holders)
        assert len(used) == sum(map(len, holders)), "a chunk with two owners"
        evictable = sum(len(entry.chunks) for entry in self.hosted.values() if id(entry) not in reading)
        stats = self.books.stats().host
        assert stats is not None
        assert (stats.free_chunks, stats.evictable_chunks) == (self.chunks - len(used), evictable)
        assert stats.free_chunks + stats.pinned_chunks + stats.evictable_chunks == self.chunks
        assert (stats.entries, stats.moving) == (len(self.hosted), len(self.flights))

    def reading(self) -> dict[int, Hosted]:
        """What a transfer reads or makes longer, by its id."""
        return {id(one): one for f in self.flights for one in (f.source, f.base) if isinstance(one, Hosted)}

    def holders(self) -> list[set[int]]:
        """Chunks of the host that are not free, by who has them."""
        reading = self.reading().values()
        gone = [entry for entry in reading if self.hosted.get(key_of(entry.ref)) is not entry]
        stores = [flight for flight in self.flights if isinstance(flight.plan, StorePlan)]
        return [
            *(entry.chunks for entry in (*self.hosted.values(), *gone)),
            *(self.reserved(store) for store in stores),
        ]

    def drain(self) -> None:
        for flight in self.flights:
            if isinstance(flight.plan, LoadPlan):
                self.books.complete_load(flight.plan, ok=False)
            else:
                self.books.complete_store(flight.plan, ok=False)
        self.flights.clear()
        super().drain()
        stats = self.books.stats().host
        assert stats is not None
        assert stats.free_chunks == self.chunks

    def clear(self) -> None:
        super().clear()
        self.hosted.clear()

    def expect_readable(self, ref: Ref) -> None:
        device, host = self.usable(ref), self.host_usable(ref)
        want = Hit(0, device, host, 0, max(device, host)) if device or host else Miss()
        assert self.books.lookup(ref) == want

    def host_usable(self, ref: Ref) -> int:
        entry = self.hosted.get(key_of(ref))
        return oracle(entry.ref, ref) if entry is not None else 0

    def in_host(self, ref: Ref) -> bool:
        answer = self.books.lookup(ref)
        return isinstance(answer, Hit) and answer.host > 0

    def is_moving(self, key: Key) -> bool:
        return any(key_of(f.plan.ref) == key and f.lease.live and not f.cancelled for f in self.flights)

    @staticmethod
    def reserved(store: Flight) -> set[int]:
        """Chunks that no entry has yet."""
        mine = Hosted(store.plan.ref, store.plan.runs, 0).chunks
        return mine - store.base.chunks if store.base is not None else mine

    def is_read(self, entry: Hosted) -> bool:
        return any(entry in (flight.source, flight.base) for flight in self.flights)

    def is_writing(self, key: Key) -> bool:
        loading = [f for f in self.flights if isinstance(f.plan, LoadPlan)]
        return super().is_writing(key) or any(
            key_of(f.plan.ref) == key and f.lease.live and not f.cancelled for f in loading
        )

    def live_leases(self) -> list[ReadLease | WriteLease]:
        return [*super().live_leases(), *(f.lease for f in self.flights if f.lease.live)]

    OPERATIONS = (
        *BooksModel.OPERATIONS,
        (load, 12), (store, 12), (step_flight, 16), (finish_flight, 14), (spill_candidates, 4),
    )  # fmt: skip


def drive(
    seed: int, operations: int, pages: int, chunks: int, kind: type[TieredModel] = TieredModel
) -> TieredModel:
    model = kind(random.Random(seed), pages=pages, chunks=chunks)
    for i in range(operations):
        model.step()
        if i % 20 == 0:
            model.check_all()
    model.drain()
    return model
