"""The visible entries, one per identity, with their pages and the order in which they would leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from relaygr.cache.entry import Entry, Identity
from relaygr.cache.interface import Cause
from relaygr.cache.ledger import NO_PAGES, PageLedger
from relaygr.cache.recency import Recency
from relaygr.core.ids import Fingerprint, Tenant, UserId


class EntryIndex:
    """Identity -> entry, over the pages of one ledger.

    Changes: an entry holds its pages from `put` until it is replaced, dropped or evicted. `settle` must be
    called for an identity after pins on its pages came or went.
    "No" is None from `get` and False from `make_room`, and then nothing changed.
    """

    __slots__ = (
        "_entries",
        "_ledger",
        "_of_user",
        "_on_evict",
        "_recency",
        "departed",
        "evictable_pages",
    )

    def __init__(self, ledger: PageLedger, on_evict: Callable[[Entry], None] | None = None) -> None:
        """`on_evict` is told each entry that leaves to make room."""
        self._ledger = ledger
        self._on_evict = on_evict
        self._entries: dict[Identity, Entry] = {}
        self._of_user: dict[tuple[Tenant, UserId], set[Identity]] = {}
        self._recency = Recency()
        self.evictable_pages = 0  # of entries without a pinned page
        self.departed = dict.fromkeys(Cause, 0)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Identity) -> Entry | None:
        return self._entries.get(key)

    def oldest(self) -> Iterator[Entry]:
        """Entries without a pinned page, least recently used first; nothing may change meanwhile."""
        return (self._entries[key] for key in self._recency.oldest())

    def keys_of(self, tenant: Tenant, user: UserId) -> list[Identity]:
        return list(self._of_user.get((tenant, user), ()))

    def keys_of_other_models(self, model_fp: Fingerprint) -> list[Identity]:
        return [key for key in self._entries if key.model_fp != model_fp]

    def touch(self, key: Identity) -> None:
        if key in self._entries:
            self._recency.touch(key)

    def prefer(self, key: Identity, safe: bool) -> None:
        """Whether nothing would be lost with the entry: those leave first."""
        self._recency.set_rank(key, 0 if safe else 1)

    def put(self, key: Identity, entry: Entry, shared: int) -> None:
        """Make `entry` the one of its identity; it takes over the recency of the one before.

        The first `shared` pages of the two are the same.

        What only the entry before held is free at once, unless a lease still pins it. Until `settle` is
        called it counts as pinned.
        """
        old = self._entries.get(key)
        if old is not None and not self._recency.is_parked(key):
            self.evictable_pages -= len(old.ids)
        self._entries[key] = entry
        self._of_user.setdefault((key.tenant, key.user), set()).add(key)
        self._recency.insert(key)
        self._recency.park(key)
        if old is None:
            self._ledger.replace(NO_PAGES, entry.ids)
        else:
            self._ledger.replace(old.ids[shared:], entry.ids[shared:])

    def drop(self, key: Identity, cause: Cause | None = None) -> None:
        """With a `cause` it is counted as one that left for good."""
        if cause is not None:
            self.departed[cause] += 1
        if not self._recency.is_parked(key):
            self.evictable_pages -= len(self._entries[key].ids)
        self._recency.remove(key)
        self._remove(key)

    def settle(self, key: Identity) -> None:
        """An entry with a pinned page cannot leave; without one it can."""
        entry = self._entries.get(key)
        if entry is None:
            return
        if self._ledger.any_pinned(entry.ids):
            self.park(key)
        elif self._recency.is_parked(key):
            self._recency.unpark(key)
            self.evictable_pages += len(entry.ids)

    def park(self, key: Identity) -> None:
        """As `settle` where a page was pinned just now."""
        entry = self._entries.get(key)
        if entry is not None and not self._recency.is_parked(key):
            self._recency.park(key)
            self.evictable_pages -= len(entry.ids)

    def make_room(self, pages: int, keep: Identity) -> bool:
        """Evict until `pages` are free, never `keep`; nothing at all when that could not be enough."""
        kept = self._entries.get(keep)
        own = len(kept.ids) if kept is not None and not self._recency.is_parked(keep) else 0
        if pages > self._ledger.free_count + self.evictable_pages - own:
            return False
        while self._ledger.free_count < pages:
            victim = self._recency.pop_oldest(keep)
            assert victim is not None, "evictable pages belong to entries that are not parked"
            entry = self._entries[victim]
            self.evictable_pages -= len(entry.ids)
            self._remove(victim)
            self.departed[Cause.ROOM] += 1
            if self._on_evict is not None:
                self._on_evict(entry)
        return True

    def audit(self) -> None:
        """Check the counters against a count from scratch; linear in pages and entries, for tests."""
        self._ledger.audit()
        unpinned = {key for key, entry in self._entries.items() if not self._ledger.any_pinned(entry.ids)}
        assert self.evictable_pages == sum(len(self._entries[key].ids) for key in unpinned), "evictable pages"
        assert unpinned == {key for key in self._entries if not self._recency.is_parked(key)}, (
            "parked entries"
        )
        assert len(self._recency) == len(self._entries) == sum(map(len, self._of_user.values())), "entries"

    def _remove(self, key: Identity) -> None:
        self._ledger.drop(self._entries.pop(key).ids)
        mine = self._of_user[key.tenant, key.user]
        mine.discard(key)
        if not mine:
            del self._of_user[key.tenant, key.user]
