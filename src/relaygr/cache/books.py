"""The books of the device tier: which pages hold whose state, who leases them, and who has to leave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relaygr.cache.digests import longest_match
from relaygr.cache.entry import Entry, Identity, identity
from relaygr.cache.index import EntryIndex
from relaygr.cache.interface import Cause, LoadPlan, PageSum, Reason, Refused, StateCache, Stats, StorePlan
from relaygr.cache.lease import Lease, LeaseTable, PageCopy, ReadLease, WriteLease
from relaygr.cache.ledger import NO_PAGES, PageLedger, as_ids
from relaygr.cache.margin import Margin
from relaygr.cache.pages import PageIds
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Answer, Hit, Miss, Ref, Touch

MARGIN = 32  # one part in so many of the device: what left it last, for whom it may be too small


class DeviceBooks(StateCache):
    """A `StateCache` with the device as its only tier.

    Forgetting and swapping are done when they return and nothing is loaded, so `lookup` answers Miss or Hit.
    A lease expires `lease_ttl_s` after its deadline, which leaves a late holder time to notice and let go.

    Page i of an entry holds tokens [i * page_tokens, (i + 1) * page_tokens), wherever digest pages end. A
    version and its successor share the pages of the common prefix. The partial last page is extended in
    place unless the content departs inside it, a lease pins it (its reader may count on a clean tail) or an
    earlier writer left it dirty; then its rows are copied to a page of the new version.
    """

    def __init__(self, pages: int, page_tokens: int, page_bytes: int, lease_ttl_s: float) -> None:
        if page_tokens < 1:
            raise ValueError(f"page_tokens: {page_tokens} must be at least 1")
        if page_bytes < 1:
            raise ValueError(f"page_bytes: {page_bytes} must be at least 1")
        if lease_ttl_s < 0:
            raise ValueError(f"lease_ttl_s: {lease_ttl_s} must not be negative")
        self.page_tokens, self.page_bytes = page_tokens, page_bytes
        self._lease_ttl_s = lease_ttl_s
        self._ledger = PageLedger(pages)
        self._index = EntryIndex(self._ledger, self._evicted)
        self._leases = LeaseTable()
        self._writers: dict[Identity, WriteLease] = {}
        self._model_fp: Fingerprint | None = None
        self.margin = Margin(pages * page_bytes // MARGIN)
        self.on_less: Callable[[Identity], None] | None = None  # told whose state has lost a part or a copy
        self._overdue = 0
        self._refused = dict.fromkeys(Reason, 0)

    def lookup(self, ref: Ref) -> Answer:
        entry = self._index.get(identity(ref))
        usable = longest_match(entry.ref, ref) if entry is not None else 0
        if entry is None or usable == 0:
            return Miss()
        return Hit(device_start=0, device_end=usable, host=0, disk=0, usable=usable)

    def prepare_load(
        self, ref: Ref, tokens: int, now_s: float, deadline_s: float, whole: bool = False
    ) -> LoadPlan | Refused:
        return self._refuse(Reason.NO_LOWER_TIER)

    def complete_load(self, plan: LoadPlan, ok: bool, damaged: bool = False) -> bool:
        """No plan was ever made here."""
        return False

    def prepare_store(self, ref: Ref, tokens: int, now_s: float) -> StorePlan | Refused:
        return self._refuse(Reason.NO_LOWER_TIER)

    def complete_store(self, plan: StorePlan, ok: bool, sums: tuple[PageSum, ...] = ()) -> bool:
        """No plan was ever made here."""
        return False

    def touch(self, ref: Ref, kind: Touch) -> None:
        self._touch(identity(ref), kind)

    def lease(
        self, ref: Ref, tokens: int, owner: str, now_s: float, deadline_s: float
    ) -> ReadLease | Refused:
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} must be at least 1")
        if not self._serves(ref):
            return self._refuse(Reason.STALE_MODEL)
        key = identity(ref)
        entry = self._index.get(key)
        if entry is None or tokens > longest_match(entry.ref, ref):
            return self._refuse(Reason.NOT_RESIDENT)
        count = self._pages_for(tokens)
        lease = ReadLease(
            keeper=self,
            identity=key,
            owner=owner,
            expires_s=deadline_s + self._lease_ttl_s,
            pins=entry.ids[:count],
            page_count=count,
            tokens=tokens,
            rounded_tokens=min(entry.rounded_tokens, tokens),
            clean_tail=tokens % self.page_tokens == 0 or (tokens == entry.tokens and not entry.dirty_tail),
        )
        self._ledger.pin(lease.pins)
        self._leases.add(lease, now_s)
        self._index.park(key)
        return lease

    def append(self, ref: Ref, owner: str, now_s: float, deadline_s: float) -> WriteLease | Refused:
        if not self._serves(ref):
            return self._refuse(Reason.STALE_MODEL)
        key = identity(ref)
        if key in self._writers:
            return self._refuse(Reason.BUSY)
        entry = self._index.get(key)
        reused = longest_match(entry.ref, ref) if entry is not None else 0
        if reused == ref.tokens:
            return self._refuse(Reason.ALREADY_STORED)
        count = self._pages_for(ref.tokens)
        if count > self._ledger.total:
            return self._refuse(Reason.TOO_LARGE)
        self.margin.asked(key)
        kept, source = self._reuse(entry, reused) if entry is not None else (NO_PAGES, None)
        if not self._index.make_room(count - len(kept), keep=key):
            return self._refuse(Reason.PINNED)
        taken = self._ledger.take(count - len(kept), after=int(kept[-1]) if len(kept) else None)
        assert taken is not None, "room was made"
        if entry is not None and reused:
            # The source of a copy is pinned too: the entry may be dropped before the mover gets to it.
            self._ledger.pin(entry.ids[: self._pages_for(reused)])
            self._index.park(key)
            if len(kept) * self.page_tokens > reused:
                entry.dirty_tail = True
        copied = NO_PAGES if source is None else as_ids((source,))
        lease = WriteLease(
            keeper=self,
            identity=key,
            owner=owner,
            expires_s=deadline_s + self._lease_ttl_s,
            pins=np.concatenate((kept, taken, copied)) if len(taken) else kept,
            page_count=count,
            tokens=ref.tokens,
            rounded_tokens=min(entry.rounded_tokens, reused) if entry is not None else 0,
            ref=ref,
            reused_tokens=reused,
            shared_pages=len(kept),
            fresh=tuple(taken[len(copied) :].tolist()),
            copies=() if source is None else (PageCopy(source, int(taken[0]), reused % self.page_tokens),),
        )
        self._writers[key] = lease
        self._leases.add(lease, now_s)
        return lease

    def publish(self, lease: WriteLease, now_s: float) -> bool:
        """Called through the lease."""
        if not lease.live:
            return False
        if lease.cancelled or now_s >= lease.expires_s:
            self._overdue += not lease.cancelled
            self.release(lease)
            return False
        ids = lease.pins[: lease.page_count]
        entry = Entry(lease.ref, ids, rounded_tokens=lease.rounded_tokens)
        self._index.put(lease.identity, entry, lease.shared_pages)
        self.release(lease)
        return True

    def release(self, lease: Lease) -> None:
        """Called through the lease."""
        if not lease.live:
            return
        lease.live = False
        self._leases.remove(lease)
        if self._writers.get(lease.identity) is lease:
            del self._writers[lease.identity]
        self._ledger.unpin(lease.pins)
        self._index.settle(lease.identity)

    def forget(self, tenant: Tenant, user: UserId) -> int:
        for key in [key for key in self._writers if (key.tenant, key.user) == (tenant, user)]:
            self._cancel(key)
        keys = self._index.keys_of(tenant, user)
        for key in keys:
            self._index.drop(key, Cause.FORGOTTEN)
        self.margin.forget_user(tenant, user)
        return len(keys)

    def discard(self, key: Identity) -> None:
        """An entry is of no more use to anybody; a write of its next version goes on."""
        if self._index.get(key) is not None:
            self._index.drop(key, Cause.ROOM)

    def swap_model(self, model_fp: Fingerprint) -> None:
        self._model_fp = model_fp
        self.margin.clear()
        for key in [key for key in self._writers if key.model_fp != model_fp]:
            self._cancel(key)
        for key in self._index.keys_of_other_models(model_fp):
            self._index.drop(key, Cause.MODEL)

    def sweep(self, now_s: float) -> int:
        count = 0
        while (lease := self._leases.pop_overdue(now_s)) is not None:
            self.release(lease)
            count += 1
        self._overdue += count
        return count

    def stats(self) -> Stats:
        total, free, evictable = self._ledger.total, self._ledger.free_count, self._index.evictable_pages
        return Stats(
            total_pages=total,
            free_pages=free,
            pinned_pages=total - free - evictable,
            evictable_pages=evictable,
            page_bytes=self.page_bytes,
            entries=len(self._index),
            leases=len(self._leases),
            evictions=self._index.departed[Cause.ROOM],
            overdue=self._overdue,
            refused=tuple(self._refused.items()),
            oldest_lease_s=self._leases.oldest_s,
            departures=tuple(self._index.departed.items()),
            page_tokens=self.page_tokens,
        )

    def audit(self) -> None:
        """Check the counters against a count from scratch; linear in pages and entries, for tests."""
        self._index.audit()
        assert all(lease.live for lease in self._writers.values()), "writers"

    def _evicted(self, entry: Entry) -> None:
        """An entry left to make room; a cache with a lower tier wants to know what was lost."""
        key = identity(entry.ref)
        self.margin.left(key, len(entry.ids) * self.page_bytes, entry.tokens)
        self._tell_less(key)

    def _tell_less(self, key: Identity) -> None:
        if self.on_less is not None:
            self.on_less(key)

    def _touch(self, key: Identity, kind: Touch) -> None:
        self._index.touch(key)
        self.margin.visited(key, kind)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def _serves(self, ref: Ref) -> bool:
        return self._model_fp is None or ref.model_fp == self._model_fp

    def _refuse(self, reason: Reason) -> Refused:
        self._refused[reason] += 1
        return Refused(reason)

    def _reuse(self, entry: Entry, reused: int) -> tuple[PageIds, int | None]:
        """The pages the next version shares with `entry`, and the page whose first rows it has to copy."""
        whole, partial = divmod(reused, self.page_tokens)
        if not partial:
            return entry.ids[:whole], None
        page = int(entry.ids[whole])
        if reused == entry.tokens and not entry.dirty_tail and not self._ledger.is_pinned(page):
            return entry.ids, None
        return entry.ids[:whole], page

    def _cancel(self, key: Identity) -> None:
        self._writers.pop(key).cancelled = True
