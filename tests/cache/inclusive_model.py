"""Random operations on the books of a device that host memory backs, beside a plain model."""

from dataclasses import dataclass
from typing import ClassVar

from books_state import KEYS, PAGE_TOKENS, Key, Stored, key_of, rows_of
from cache_content import oracle
from tiered_model import CHUNK, Flight, Hosted, TieredModel

from relaygr.cache.digests import cut
from relaygr.cache.host import HEADROOM, MANY_RUNS, ROOMY
from relaygr.cache.inclusive import InclusiveBooks
from relaygr.cache.interface import HostRun, Reason, Refused, StorePlan
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.state import Ref


@dataclass
class InclusiveModel(TieredModel):
    BOOKS: ClassVar[type[TieredBooks]] = InclusiveBooks

    def store(self) -> None:
        ref = self.ref(
            self.rng.choice([key[:2] + key[3:] for key in self.stored] or KEYS), self.rng.random() < 0.2
        )
        key, usable = key_of(ref), self.usable(ref)
        tokens = self.rng.choice([usable, usable, self.rng.randint(1, usable + 1)]) or 1
        entry, host = self.stored.get(key), self.books.stats().host
        assert host is not None
        start, end = self.to_store(entry) if entry else (0, 0)
        if start < end and start and self.is_stuck(self.hosted[key], end):
            start = 0
            self.note("stuck")
        base = self.hosted[key] if start else None
        need = -(-end // CHUNK) - (len(base.chunks) if base else 0)
        victims = {k: e for k, e in self.hosted.items() if not self.is_read(e) and e is not base}
        got = self.books.prepare_store(ref, tokens, self.now_s)
        gone = {k for k in victims if not self.in_host(victims[k].ref)}
        if isinstance(got, Refused):
            assert not gone
            expected = {
                Reason.STALE_MODEL: self.model_fp not in (None, ref.model_fp),
                Reason.BUSY: self.is_moving(key) or self.is_writing(key),
                Reason.NOT_RESIDENT: tokens > usable,
                Reason.ALREADY_STORED: start >= end,
                Reason.TOO_LARGE: -(-end // CHUNK) > self.chunks,
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
            assert (got.start, got.start + got.tokens) == (start, end), "not the delta alone"
            assert rows_of(got.ref) == rows_of(entry.ref)[:end]
            assert got.pages == entry.pages[: end // PAGE_TOKENS]
            assert sum(run.tokens for run in got.runs) == end
            if base is not None:
                head = base.ref.tokens // PAGE_TOKENS * PAGE_TOKENS
                assert [self.place(got, token) for token in range(head)] == [
                    self.place(base, token) for token in range(head)
                ]
            self.note("delta" if start else "whole")
            self.flights.append(Flight(got, lease, rows_of(got.ref), entry, start, base=base))
        self.note("store" if isinstance(got, StorePlan) else f"store {got.reason}")

    def is_stuck(self, copy: Hosted, tokens: int) -> bool:
        """Whether states lie in many pieces, and the copy would need one more."""
        runs = sum(len(one.runs) for one in self.hosted.values())
        if self.chunks < HEADROOM or runs <= MANY_RUNS * len(self.hosted):
            return False
        last = copy.runs[-1]
        behind = -(-(last.offset + last.tokens) // CHUNK)
        taken = behind >= self.chunks or behind in set().union(*self.holders())
        return -(-tokens // CHUNK) > len(copy.chunks) and taken

    def finish_store(self, flight: Flight, plan: StorePlan, ok: bool) -> None:
        key, base = key_of(plan.ref), flight.base
        now = self.stored.get(key)
        same = now is not None and oracle(now.ref, plan.ref) == plan.ref.tokens
        wanted = same and (base is None or self.hosted.get(key) is base)
        visible = ok and wanted and not flight.cancelled
        assert self.books.complete_store(plan, ok) is visible
        assert self.books.complete_store(plan, ok=True) is False
        if visible and base is not None:
            base.ref, base.runs = plan.ref, plan.runs
            self.note("grown")
        elif visible:
            self.hosted[key] = Hosted(plan.ref, plan.runs, self.next_use())
        if visible and now is not flight.source:
            self.note("stored what has grown since")
        self.note("stored" if visible else "store dropped" if ok and not wanted else "store failed")

    def published(self, ref: Ref) -> None:
        key = key_of(ref)
        copy = self.hosted.get(key)
        if copy is None:
            return
        same = oracle(copy.ref, ref)
        if same == min(copy.ref.tokens, ref.tokens):
            return
        keep = same // PAGE_TOKENS * PAGE_TOKENS
        if self.is_read(copy) or not keep:
            del self.hosted[key]
            self.note("departed, dropped")
        else:
            copy.ref = cut(copy.ref, keep)
            copy.runs = tuple(
                HostRun(run.start, min(run.tokens, keep - run.start), run.offset)
                for run in copy.runs
                if run.start < keep
            )
            self.note("departed, shortened")

    def check_evictions(
        self, lease: WriteLease, victims: dict[Key, Stored], gone: set[Key], free: int
    ) -> None:
        order = sorted(victims, key=lambda k: (self.is_dirty(victims[k]), victims[k].last_use))
        assert set(order[: len(gone)]) == gone, "not clean ones first, the least recently used of them"
        if gone:
            all_but_last = sum(len(victims[k].pages) for k in order[: len(gone) - 1])
            assert free + all_but_last < len(lease.fresh) + len(lease.copies), "more than the shortfall"
        for key in gone:
            self.note("lost" if self.is_dirty(self.stored[key]) else "clean eviction")
            del self.stored[key]
            self.note("eviction")

    def spill_candidates(self) -> None:
        target = self.rng.randint(0, self.pages)
        missing = target - self.books.stats().free_pages
        missing -= sum(len(f.plan.pages) for f in self.flights if isinstance(f.plan, StorePlan))
        want = []
        for entry in sorted(self.stored.values(), key=lambda e: (self.is_dirty(e), e.last_use)):
            if missing > 0 and not self.is_pinned(entry):
                missing -= len(entry.pages)
                if self.is_dirty(entry):
                    want.append(entry.ref)
        assert self.tiers.spill_candidates(target) == want
        self.note("candidates" if want else "no candidates")

    def to_store(self, entry: Stored) -> tuple[int, int]:
        whole = entry.ref.tokens // PAGE_TOKENS * PAGE_TOKENS
        return self.host_usable(entry.ref) // PAGE_TOKENS * PAGE_TOKENS, whole

    def is_dirty(self, entry: Stored) -> bool:
        start, end = self.to_store(entry)
        return start < end

    @staticmethod
    def place(holder: Hosted | StorePlan, token: int) -> int:
        run = next(run for run in holder.runs if run.start <= token < run.start + run.tokens)
        return run.offset + token - run.start
