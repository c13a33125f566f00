"""Random operations on the device books, each answer checked against the model."""

from collections.abc import Callable

from books_state import KEYS, MODELS, PAGE_TOKENS, BooksState, Key, Reader, Stored, Writer, key_of, rows_of

from relaygr.cache.interface import Reason, Refused
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref, Touch


class BooksModel(BooksState):
    """Drives the real books; an operation that has nothing to work on does nothing."""

    def lookup(self) -> None:
        ref = self.ref(self.rng.choice(KEYS), cut=self.rng.random() < 0.3)
        self.expect_readable(ref)
        if self.rng.random() < 0.7:
            self.touch(ref)

    def touch(self, ref: Ref) -> None:
        self.books.touch(ref, self.rng.choice(list(Touch)))
        entry = self.stored.get(key_of(ref))
        if entry is not None:
            entry.last_use = self.next_use()

    def lease(self) -> None:
        ref = self.ref(self.rng.choice(KEYS), cut=self.rng.random() < 0.4)
        usable = self.usable(ref)
        tokens = self.rng.choice([usable, usable, self.rng.randint(1, usable + 1)]) or 1
        got = self.books.lease(ref, tokens, "reader", self.now_s, self.deadline())
        if self.model_fp not in (None, ref.model_fp):
            assert got == Refused(Reason.STALE_MODEL)
        elif tokens > usable:
            assert got == Refused(Reason.NOT_RESIDENT)
        else:
            assert isinstance(got, ReadLease)
            assert got.tokens == tokens
            assert got.pages == self.stored[key_of(ref)].pages[: -(-tokens // PAGE_TOKENS)]
            self.readers.append(Reader(got, rows_of(ref)[:tokens]))
            self.note("clean tail" if got.clean_tail else "unclean tail")
            whole_entry = tokens == self.stored[key_of(ref)].ref.tokens
            self.note("dirty entry" if whole_entry and not got.clean_tail else "clean entry")
        self.note("lease" if isinstance(got, ReadLease) else got.reason)

    def append(self) -> None:
        ref = self.ref(self.rng.choice(KEYS), cut=self.rng.random() < 0.2)
        key, before = key_of(ref), self.books.stats()
        victims = {k: e for k, e in self.stored.items() if k != key and not self.is_pinned(e)}
        usable, need = self.usable(ref), -(-ref.tokens // PAGE_TOKENS)
        busy = self.is_writing(key)
        got = self.books.append(ref, "writer", self.now_s, self.deadline())
        gone = {k for k in victims if not self.on_device(victims[k].ref)}
        if isinstance(got, Refused):
            assert not gone
            expected = {
                Reason.STALE_MODEL: self.model_fp not in (None, ref.model_fp),
                Reason.BUSY: busy,
                Reason.ALREADY_STORED: usable == ref.tokens,
                Reason.TOO_LARGE: need > self.pages,
                Reason.PINNED: before.free_pages + sum(len(e.pages) for e in victims.values()) < need,
            }
            assert expected[got.reason], got
        else:
            assert not busy
            assert usable < ref.tokens
            self.check_write(got, ref, usable)
            self.check_evictions(got, victims, gone, before.free_pages)
            self.writers.append(Writer(key, got, rows_of(ref), got.reused_tokens))
        self.note("append" if isinstance(got, WriteLease) else got.reason)

    def check_write(self, lease: WriteLease, ref: Ref, usable: int) -> None:
        assert lease.reused_tokens == usable
        assert lease.tokens == ref.tokens
        assert len(lease.pages) == len(set(lease.pages)) == -(-ref.tokens // PAGE_TOKENS)
        in_place = usable % PAGE_TOKENS and not lease.copies
        self.note("in place" if in_place else "copy on write" if lease.copies else "whole pages")
        writable = set(lease.pages[usable // PAGE_TOKENS :])
        assert writable >= {*lease.fresh, *(copy.dst for copy in lease.copies)}
        for other in self.live_leases():
            assert other is lease or writable.isdisjoint(other.pages), "a page with two users"

    def check_evictions(
        self, lease: WriteLease, victims: dict[Key, Stored], gone: set[Key], free: int
    ) -> None:
        order = sorted(victims, key=lambda k: victims[k].last_use)
        assert set(order[: len(gone)]) == gone, "not the least recently used"
        if gone:
            all_but_last = sum(len(victims[k].pages) for k in order[: len(gone) - 1])
            assert free + all_but_last < len(lease.fresh) + len(lease.copies), "more than the shortfall"
        for key in gone:
            del self.stored[key]
            self.note("eviction")

    def step_writer(self) -> None:
        """Let a writer do part of its work."""
        if not self.writers:
            return
        writer = self.rng.choice(self.writers)
        lease = writer.lease
        if not writer.prepared:
            for page in lease.fresh:
                self.slots[page] = [0] * PAGE_TOKENS
            for src, dst, tokens in lease.copies:
                self.slots[dst] = self.slots[src][:tokens] + [0] * (PAGE_TOKENS - tokens)
            writer.prepared = True
            self.expect_rows(lease.pages, writer.rows[: writer.written], clean=True)
            return
        end = self.rng.choice([lease.tokens, self.rng.randint(writer.written, lease.tokens)])
        for token in range(writer.written, end):
            self.slots[lease.pages[token // PAGE_TOKENS]][token % PAGE_TOKENS] = writer.rows[token]
        writer.written = end

    def finish_writer(self) -> None:
        """Publish a writer that is done, or cancel one at whatever stage it is."""
        if not self.writers:
            return
        writer = self.rng.choice(self.writers)
        lease = writer.lease
        done = writer.prepared and writer.written == lease.tokens
        if not done and self.rng.random() < 0.7:
            return
        self.writers.remove(writer)
        if not done or self.rng.random() < 0.15:
            lease.abort()
            self.note("abort")
        else:
            late = self.now_s >= lease.expires_s
            assert lease.publish(self.now_s) is not (late or writer.cancelled)
            if late and not writer.cancelled:
                self.overdue += 1
            elif not writer.cancelled:
                old = self.stored.get(writer.key)
                self.stored[writer.key] = Stored(
                    lease.ref, lease.pages, old.last_use if old else self.next_use()
                )
                self.published(lease.ref)
                self.note("publish")
        assert not lease.live
        assert lease.publish(self.now_s) is False
        lease.abort()

    def published(self, ref: Ref) -> None:
        """A lower tier may have something to drop now."""

    def finish_reader(self) -> None:
        if self.readers:
            lease = self.readers.pop(self.rng.randrange(len(self.readers))).lease
            lease.release()
            lease.release()
            assert not lease.live

    def forget(self) -> None:
        who = self.rng.choice(KEYS)[:2]
        mine = [key for key in self.stored if key[:2] == who]
        assert self.books.forget(Tenant(who[0]), UserId(who[1])) == len(mine)
        for key in mine:
            del self.stored[key]
        self.cancel_writers(lambda key: key[:2] == who)

    def swap_model(self) -> None:
        self.model_fp = self.rng.choice(MODELS)
        self.books.swap_model(Fingerprint(self.model_fp))
        for key in [key for key in self.stored if key[2] != self.model_fp]:
            del self.stored[key]
        self.cancel_writers(lambda key: key[2] != self.model_fp)

    def cancel_writers(self, match: Callable[[Key], bool]) -> None:
        for writer in self.writers:
            if match(writer.key):
                self.note("cancel in flight")
                writer.cancelled = True
                assert writer.lease.cancelled
                assert writer.lease.live

    def sweep(self) -> None:
        self.now_s += self.rng.uniform(0.0, 3.0)
        late = [lease for lease in self.live_leases() if lease.expires_s <= self.now_s]
        assert self.books.sweep(self.now_s) == len(late)
        assert not any(lease.live for lease in late)
        self.overdue += len(late)
        for _ in late:
            self.note("overdue")
        self.readers = [reader for reader in self.readers if reader.lease.live]
        swept = [writer for writer in self.writers if not writer.lease.live]
        for writer in swept:
            assert writer.lease.publish(self.now_s) is False
            self.writers.remove(writer)

    OPERATIONS = (
        (BooksState.edit, 14), (lookup, 10), (lease, 14), (append, 18), (step_writer, 34),
        (finish_writer, 20), (finish_reader, 10), (sweep, 3), (forget, 1), (swap_model, 0.3),
    )  # fmt: skip

    def step(self) -> None:
        operations, weights = zip(*self.OPERATIONS, strict=True)
        getattr(self, self.rng.choices(operations, weights)[0].__name__)()
        self.operations += 1
        self.check()
