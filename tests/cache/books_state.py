"""What a plain model of the device books knows, page contents included, and what must hold at any time."""

import random
from dataclasses import dataclass, field
from itertools import accumulate

from cache_content import chain, oracle

from relaygr.cache.books import DeviceBooks
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Hit, Miss, Ref

Key = tuple[str, str, bytes, int]  # tenant, user, model fingerprint, anchor

PAGE_TOKENS = 4
PAGES = 40
TTL_S = 2.0
MODELS = (b"model-a", b"model-b")
KEYS = [("t1", f"u{i}", anchor) for i in range(4) for anchor in (0, 7)] + [("t2", "u0", 0), ("t2", "u9", 0)]


def rows_of(ref: Ref) -> list[int]:
    """One value a token, standing for its keys and values: it depends on every record up to it."""
    width = ref.record_bytes
    records = [bytes(ref.records[i * width : (i + 1) * width]) for i in range(ref.tokens)]
    seed = hash((ref.tenant, ref.user, ref.model_fp, ref.schema, ref.anchor))
    return [value or 1 for value in accumulate(records, lambda past, now: hash((past, now)), initial=seed)][
        1:
    ]


@dataclass
class Stored:
    ref: Ref
    pages: tuple[int, ...]
    last_use: int


@dataclass
class Reader:
    lease: ReadLease
    rows: list[int]


@dataclass
class Writer:
    key: Key
    lease: WriteLease
    rows: list[int]
    written: int
    prepared: bool = False
    cancelled: bool = False


def key_of(ref: Ref) -> Key:
    return (ref.tenant, ref.user, ref.model_fp, ref.anchor)


@dataclass
class BooksState:
    """The real books beside the model; all choices come from `rng`."""

    rng: random.Random
    pages: int = PAGES
    now_s: float = 0.0
    uses: int = 0
    operations: int = 0
    overdue: int = 0
    model_fp: bytes | None = None
    contents: dict[tuple[str, str, int], list[list[int]]] = field(default_factory=dict)
    stored: dict[Key, Stored] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.books = self.make_books()
        self.slots = [[-1] * PAGE_TOKENS for _ in range(self.pages)]  # rubbish until zeroed
        for who in KEYS:
            self.contents[who] = [self.tokens(self.rng.randint(0, 5)), self.tokens(self.rng.randint(1, 25))]

    def make_books(self) -> DeviceBooks:
        return DeviceBooks(self.pages, PAGE_TOKENS, page_bytes=64, lease_ttl_s=TTL_S)

    # --- content ---

    def tokens(self, n: int) -> list[int]:
        return [self.rng.randint(0, 3) for _ in range(n)]

    def ref(self, who: tuple[str, str, int], cut: bool = False) -> Ref:
        segments = self.contents[who]
        if cut:  # a request shorter than the entry
            segments = [segments[0], segments[1][: self.rng.randint(0, len(segments[1]))]]
        fp = self.model_fp or MODELS[0]
        if self.rng.random() < 0.03:
            fp = self.rng.choice(MODELS)
        return chain(
            segments, page_tokens=PAGE_TOKENS, model_fp=fp, tenant=who[0], user=who[1], anchor=who[2]
        ).ref()

    def edit(self) -> None:
        who = self.rng.choice(KEYS)
        kind = self.rng.choice(
            ["grow"] * 6 + ["retract"] * 2 + ["edit", "insert", "delete", "reorder", "reset"]
        )
        segment = self.contents[who][self.rng.random() < 0.9]
        at = self.rng.randint(0, len(segment))
        if kind == "grow":
            self.contents[who][1].extend(self.tokens(self.rng.randint(1, 7)))
        elif kind == "retract":  # so that a writer may write less than a cancelled one before it
            del self.contents[who][1][-self.rng.randint(1, 3) :]
        elif kind == "insert":
            segment.insert(at, self.rng.randint(0, 3))
        elif kind == "reorder":
            segment[at:] = segment[at:][::-1]
        elif kind == "reset":
            self.contents[who][1] = self.tokens(self.rng.randint(0, 20))
        elif at < len(segment):
            segment[at : at + 1] = self.tokens(1) if kind == "edit" else []
        if len(self.contents[who][1]) > 60 and self.rng.random() < 0.9:
            del self.contents[who][1][30:]
        self.note(kind)

    # --- what must always hold ---

    def check(self) -> None:
        for reader in self.readers:
            self.expect_rows(reader.lease.pages, reader.rows, reader.lease.clean_tail)
        leased = {page for lease in self.live_leases() for page in lease.pages}
        writing = [lease for lease in self.live_leases() if isinstance(lease, WriteLease)]
        leased |= {copy.src for lease in writing for copy in lease.copies}
        used, evictable = set(leased), 0
        for entry in self.stored.values():
            self.expect_rows(entry.pages, rows_of(entry.ref), clean=False)
            used |= set(entry.pages)
            evictable += len(entry.pages) * leased.isdisjoint(entry.pages)
        stats = self.books.stats()
        assert stats.free_pages == self.pages - len(used)
        assert stats.evictable_pages == evictable
        assert stats.pinned_pages == len(used) - evictable
        assert (
            stats.free_pages + stats.pinned_pages + stats.evictable_pages == stats.total_pages == self.pages
        )
        assert stats.entries == len(self.stored)
        assert stats.leases == len(self.live_leases())
        assert stats.overdue == self.overdue

    def check_all(self) -> None:
        """The dearer half: every identity looked up, every counter recounted."""
        self.books.audit()
        for who in KEYS:
            for fp in MODELS:
                self.expect_readable(chain(
                    self.contents[who], page_tokens=PAGE_TOKENS, model_fp=fp,
                    tenant=who[0], user=who[1], anchor=who[2],
                ).ref())  # fmt: skip

    def drain(self) -> None:
        """End all leases, forget all users: every page must be free."""
        for holder in [*self.readers, *self.writers]:
            holder.lease.release()
        self.readers.clear()
        self.writers.clear()
        self.check()
        assert self.books.stats().pinned_pages == 0
        for tenant, user, _ in KEYS:
            self.books.forget(Tenant(tenant), UserId(user))
        self.clear()
        self.check()
        self.books.audit()
        assert self.books.stats().free_pages == self.pages

    def clear(self) -> None:
        self.stored.clear()

    def expect_rows(self, pages: tuple[int, ...], rows: list[int], clean: bool) -> None:
        held = [value for page in pages for value in self.slots[page]]
        assert held[: len(rows)] == rows, "stale or torn rows"
        assert not clean or not any(held[len(rows) :]), "the tail is not clean"

    def expect_readable(self, ref: Ref) -> None:
        usable, entry = self.usable(ref), self.stored.get(key_of(ref))
        answer = self.books.lookup(ref)
        if usable == 0:
            assert answer == Miss()
        else:
            assert entry is not None
            assert answer == Hit(0, usable, 0, 0, usable)
            assert rows_of(entry.ref)[:usable] == rows_of(ref)[:usable], "stale hit"

    def usable(self, ref: Ref) -> int:
        entry = self.stored.get(key_of(ref))
        return oracle(entry.ref, ref) if entry is not None else 0

    def is_writing(self, key: Key) -> bool:
        return any(w.key == key and w.lease.live and not w.cancelled for w in self.writers)

    def on_device(self, ref: Ref) -> bool:
        answer = self.books.lookup(ref)
        return isinstance(answer, Hit) and answer.device_end > 0

    def is_pinned(self, entry: Stored) -> bool:
        mine = set(entry.pages)
        return any(not mine.isdisjoint(lease.pins.tolist()) for lease in self.live_leases())

    def live_leases(self) -> list[ReadLease | WriteLease]:
        return [holder.lease for holder in [*self.readers, *self.writers] if holder.lease.live]

    def deadline(self) -> float:
        return self.now_s + self.rng.choice([0.0, 1.0, 10.0])

    def next_use(self) -> int:
        self.uses += 1
        return self.uses

    def note(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1
