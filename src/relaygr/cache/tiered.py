"""The books of a device tier with host memory below it, where an entry lives in one of the two."""

from __future__ import annotations

from dataclasses import replace

from relaygr.cache.books import DeviceBooks
from relaygr.cache.digests import cut, longest_match
from relaygr.cache.disk import DiskBooks
from relaygr.cache.disk_moves import DiskMoves
from relaygr.cache.entry import Entry, Identity, identity
from relaygr.cache.flights import Flights, Load, Plan, Store
from relaygr.cache.host import HostBooks, HostEntry, Weigh, weigh_by_length
from relaygr.cache.interface import Cause, HostStats, LoadPlan, PageSum, Reason, Refused, Stats, StorePlan
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.policy import Policy
from relaygr.cache.runs import joined
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Answer, Hit, Miss, Ref, Touch


class TieredBooks(DeviceBooks):
    """A `StateCache` with device pages and host memory; without `host_bytes` exactly a `DeviceBooks`.

    An entry lives in one tier, except while it moves, while a lease keeps it on the device after it was
    stored, and while the device has only a shorter head of what the host has. A store moves the whole entry,
    whatever part of it was asked for. A load is a write of the user's next version whose rows come from the
    host: it keeps what the device has, nobody else writes meanwhile, and forgetting, swapping and sweeping
    end it as they end any write. There is one transfer per identity at a time.

    Args:
        host_bytes: what the host tier may take; rounded down to whole chunks.
        host_token_bytes: of one token in the host tier; 0 is as many as on the device.
        host_rounds: what comes back from the host is not quite what was stored.
        run_chunk_tokens: its unit of allocation, a multiple of `page_tokens`.
        layout_id: of the bytes; entries of another layout are never served.
        store_timeout_s: a store that takes longer is swept.
        policy, weigh: who leaves the host tier; see `HostBooks`.

    Raises: ValueError for sizes that do not fit.
    """

    def __init__(
        self,
        pages: int,
        page_tokens: int,
        page_bytes: int,
        lease_ttl_s: float,
        *,
        host_bytes: int = 0,
        host_token_bytes: int = 0,
        host_rounds: bool = False,
        run_chunk_tokens: int = 1024,
        layout_id: str = "",
        store_timeout_s: float = 1.0,
        policy: Policy[Identity] | None = None,
        weigh: Weigh = weigh_by_length,
    ) -> None:
        super().__init__(pages, page_tokens, page_bytes, lease_ttl_s)
        if run_chunk_tokens < 1 or run_chunk_tokens % page_tokens:
            raise ValueError(f"run_chunk_tokens: {run_chunk_tokens} must be a multiple of {page_tokens}")
        if host_token_bytes < 0:
            raise ValueError(f"host_token_bytes: {host_token_bytes} must not be negative")
        chunk_pages = run_chunk_tokens // page_tokens
        self._chunk_bytes = host_token_bytes * run_chunk_tokens or page_bytes * chunk_pages
        self._host_rounds = host_rounds
        chunks = host_bytes // self._chunk_bytes
        if host_bytes and chunks < 1:
            raise ValueError(f"host_bytes: {host_bytes} is less than one chunk, {self._chunk_bytes}")
        self.layout_id = layout_id
        self._host = None
        if chunks:
            self._host = HostBooks(
                chunks,
                run_chunk_tokens,
                layout_id,
                page_tokens=page_tokens,
                chunk_bytes=self._chunk_bytes,
                policy=policy,
                weigh=weigh,
                on_leave=self._host_has_less,
            )
        self._store_timeout_s = store_timeout_s
        self._flights = Flights()
        self._loads = self._stores = self._superseded = self._damaged = self._lost = 0
        self._without_room = 0
        self.restored = self.restore_rejected = 0
        self.displaced = 0  # entries on the device that were safe, until another took their place in the host
        self._disk: DiskBooks | None = None
        self._disk_moves: DiskMoves | None = None

    def put_below(self, disk: DiskBooks | None) -> DiskMoves | None:
        """From now on `disk` is the tier below the host; None, also without a host tier, for none."""
        if self._disk_moves is not None:
            self._disk_moves.close()
        self._disk = disk if self._host is not None else None
        self._disk_moves = None
        if self._host is not None and disk is not None:
            self._disk_moves = DiskMoves(self._host, disk, self._on_device)
        return self._disk_moves

    @property
    def host(self) -> HostBooks | None:
        """The books of host memory, for whoever fills or reads it as a whole."""
        return self._host

    @property
    def host_tokens(self) -> int:
        """Tokens that fit in the host tier; the size of the memory that its offsets point into."""
        return self._host.total_chunks * self._host.chunk_tokens if self._host is not None else 0

    def lookup(self, ref: Ref) -> Answer:
        """Also while something moves: a load counts as host until it is complete, a store as device."""
        entry = self._index.get(identity(ref))
        device = longest_match(entry.ref, ref) if entry is not None else 0
        host = self._host.match(ref) if self._host is not None else 0
        disk = self._disk.match(ref) if self._disk is not None else 0
        usable = max(device, host, disk)
        if not usable:
            return Miss()
        return Hit(device_start=0, device_end=device, host=host, disk=disk, usable=usable)

    def running(self, plan: Plan) -> bool:
        """Whether the pages and chunks of `plan` are still the mover's and its result may become visible.

        To be asked before every part of the copy; once False, `complete_*` with `ok=False` must follow.
        """
        return self._flights.running(plan)

    def prepare_load(
        self, ref: Ref, tokens: int, now_s: float, deadline_s: float, whole: bool = False
    ) -> LoadPlan | Refused:
        if self._host is None:
            return self._refuse(Reason.NO_LOWER_TIER)
        refusal = self._unmovable(ref, tokens)
        if refusal is not None:
            return refusal
        source = self._host.get(identity(ref))
        if source is None or tokens > self._host.match(ref):
            return self._refuse(Reason.NOT_RESIDENT)
        entry = self._index.get(identity(ref))
        if whole and entry is not None and longest_match(entry.ref, ref) >= tokens:
            return self._refuse(Reason.ALREADY_STORED)
        target = ref if whole else cut(source.ref, tokens)
        lease = self.append(target, "load", now_s, deadline_s)
        if isinstance(lease, Refused):
            return lease
        self._host.pin(source)
        start = lease.reused_tokens
        if self._host_rounds:
            lease.rounded_tokens = tokens
        plan = LoadPlan(
            ticket=self._flights.next_ticket(),
            ref=target,
            start=start,
            tokens=tokens - start,
            runs=self._host.host_runs(source.runs, source.tokens),
            pages=lease.pages,
            copies=lease.copies,
            sums=source.sums,
        )
        self._flights.launch(Load(plan, lease, source))
        return plan

    def complete_load(self, plan: LoadPlan, ok: bool, damaged: bool = False) -> bool:
        flight = self._flights.land(plan)
        if not isinstance(flight, Load):
            return False
        assert self._host is not None
        if damaged and flight.source.visible:
            self._host.drop(flight.lease.identity, Cause.DAMAGED)
        self._damaged += damaged
        # Rows under a live lease are whole, however late: only a sweep takes the pages away.
        published = ok and not damaged and self.publish(flight.lease, float("-inf"))
        flight.lease.abort()
        self._host.unpin(flight.source)
        self._loads += published
        return published

    def prepare_store(self, ref: Ref, tokens: int, now_s: float) -> StorePlan | Refused:
        if self._host is None:
            return self._refuse(Reason.NO_LOWER_TIER)
        refusal = self._unmovable(ref, tokens)
        if refusal is not None:
            return refusal
        entry = self._index.get(identity(ref))
        if entry is None or tokens > longest_match(entry.ref, ref):
            return self._refuse(Reason.NOT_RESIDENT)
        start, end = self._to_store(self._host, entry)
        if start >= end:
            return self._refuse(Reason.ALREADY_STORED)
        if self._host.chunks_for(end) > self._host.total_chunks:
            self._without_room += 1
            return self._refuse(Reason.TOO_LARGE)
        base = self._host.get(identity(ref)) if start else None
        if base is not None:
            self._host.pin(base)
        runs = self._host.reserve(end, base)
        if runs is None:
            if base is not None:
                self._host.unpin(base)
            self._without_room += 1
            return self._refuse(Reason.PINNED)
        lease = self.lease(entry.ref, entry.tokens, "store", now_s, now_s + self._store_timeout_s)
        assert isinstance(lease, ReadLease), "the entry is on the device and of the model served"
        whole = runs if base is None else joined(base.runs, runs)
        plan = StorePlan(
            ticket=self._flights.next_ticket(),
            ref=entry.ref if end == entry.tokens else cut(entry.ref, end),
            start=start,
            tokens=end - start,
            pages=lease.pages[: self._pages_for(end)],
            runs=self._host.host_runs(whole, end),
        )
        self._flights.launch(Store(plan, lease, entry, runs, base))
        return plan

    def complete_store(self, plan: StorePlan, ok: bool, sums: tuple[PageSum, ...] = ()) -> bool:
        """False also when the entry has changed meanwhile: the host would hold what nobody needs."""
        flight = self._flights.land(plan)
        if not isinstance(flight, Store):
            return False
        assert self._host is not None
        good = ok and flight.lease.live and not flight.cancelled
        wanted = good and self._still_wanted(flight)
        self._superseded += good and not wanted
        flight.lease.release()
        if wanted:
            self._put(self._host, flight, sums)
            self._stores += 1
        else:
            self._host.give_back(flight.runs)
        if flight.base is not None:
            self._host.unpin(flight.base)
        if wanted:
            self._stored(flight.entry)
        return wanted

    @staticmethod
    def _put(host: HostBooks, flight: Store, sums: tuple[PageSum, ...]) -> None:
        if flight.base is None:
            host.put(HostEntry(flight.plan.ref, flight.runs, host.layout_id, sums))
        else:
            host.extend(flight.base, flight.plan.ref, flight.runs, sums)

    def _to_store(self, host: HostBooks, entry: Entry) -> tuple[int, int]:
        """The tokens of an entry that a store would move; none if the first is not below the second."""
        stored = host.match(entry.ref) == entry.tokens
        return (entry.tokens if stored else 0), entry.tokens

    def _still_wanted(self, store: Store) -> bool:
        return self._index.get(store.lease.identity) is store.entry

    def _stored(self, entry: Entry) -> None:
        """An entry is in the host now: it leaves the device, unless a lease keeps it there."""
        if not self._ledger.any_pinned(entry.ids):
            key = identity(entry.ref)
            self._index.drop(key)
            self.margin.left(key, len(entry.ids) * self.page_bytes, entry.tokens)

    def _host_has_less(self, key: Identity) -> None:
        self._left_host(key)
        self._tell_less(key)

    def _left_host(self, key: Identity) -> None:
        """The host has less of this identity than before."""

    def spill_candidates(self, pages: int) -> list[Ref]:
        """Whole entries to store so that `pages` device pages would be free or hold nothing to lose.

        Least recently used first, and none that is leased. Pages of stores in flight, and of entries that
        the host holds too, count as free.
        """
        chosen: list[Ref] = []
        if self._host is None:
            return chosen
        missing = pages - self._ledger.free_count
        missing -= sum(len(store.plan.pages) for store in self._flights.stores())
        for entry in self._index.oldest():
            if missing <= 0:
                break
            missing -= len(entry.ids)
            start, end = self._to_store(self._host, entry)
            if start < end:
                chosen.append(entry.ref)
        return chosen

    def _touch(self, key: Identity, kind: Touch) -> None:
        super()._touch(key, kind)
        if self._host is not None:
            self._host.touch(key)
        if self._disk is not None:
            self._disk.touch(key)

    def publish(self, lease: WriteLease, now_s: float) -> bool:
        if not super().publish(lease, now_s):
            return False
        if self._host is not None:
            self._drop_unneeded(self._host, lease.identity, lease.ref)
        return True

    def forget(self, tenant: Tenant, user: UserId) -> int:
        dropped = set(self._index.keys_of(tenant, user))
        super().forget(tenant, user)
        if self._host is not None:
            dropped.update(self._host.forget(tenant, user))
        self._flights.cancel(lambda key: (key.tenant, key.user) == (tenant, user))
        if self._disk is not None and self._disk_moves is not None:
            self._disk_moves.cancel(lambda key: (key.tenant, key.user) == (tenant, user))
            dropped.update(self._disk.forget(tenant, user))
        return len(dropped)

    def discard(self, key: Identity) -> None:
        super().discard(key)
        if self._host is not None and self._host.get(key) is not None:
            self._host.drop(key)
        if self._disk is not None and self._disk.get(key) is not None:
            self._disk.drop(key)

    def swap_model(self, model_fp: Fingerprint) -> None:
        super().swap_model(model_fp)
        if self._host is not None:
            for key in self._host.keys_of_other_models(model_fp):
                self._host.drop(key, Cause.MODEL)
        self._flights.cancel(lambda key: key.model_fp != model_fp)
        if self._disk is not None and self._disk_moves is not None:
            self._disk_moves.cancel(lambda key: key.model_fp != model_fp)
            for key in self._disk.keys_of_other_models(model_fp):
                self._disk.drop(key, Cause.MODEL)

    def sweep(self, now_s: float) -> int:
        count = super().sweep(now_s)
        for flight in self._flights.overdue():
            if isinstance(flight, Load):
                self.complete_load(flight.plan, ok=False)
            else:
                self.complete_store(flight.plan, ok=False)
        return count

    def stats(self) -> Stats:
        host = self._host_stats(self._host) if self._host is not None else None
        disk = self._disk_moves.stats() if self._disk_moves is not None else None
        return replace(super().stats(), host=host, disk=disk)

    def audit(self) -> None:
        super().audit()
        self._flights.audit()
        if self._host is not None:
            self._host.audit()
        if self._disk_moves is not None:
            self._disk_moves.audit()

    def _on_device(self, ref: Ref) -> int:
        entry = self._index.get(identity(ref))
        return longest_match(entry.ref, ref) if entry is not None else 0

    def _unmovable(self, ref: Ref, tokens: int) -> Refused | None:
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} must be at least 1")
        if not self._serves(ref):
            return self._refuse(Reason.STALE_MODEL)
        if identity(ref) in self._flights or identity(ref) in self._writers:
            return self._refuse(Reason.BUSY)
        return None

    def _drop_unneeded(self, host: HostBooks, key: Identity, ref: Ref) -> None:
        """`ref` is on the device now: the host keeps its copy only if it holds all of `ref` and more."""
        copy = host.get(key)
        if copy is not None and not (longest_match(copy.ref, ref) == ref.tokens < copy.tokens):
            host.drop(key)

    def _evicted(self, entry: Entry) -> None:
        super()._evicted(entry)
        in_host = self._host.match(entry.ref) if self._host is not None else 0
        self._lost += entry.tokens - in_host

    def _host_stats(self, host: HostBooks) -> HostStats:
        total, free, evictable = host.total_chunks, host.free_chunks, host.evictable_chunks
        return HostStats(
            total_chunks=total,
            free_chunks=free,
            pinned_chunks=total - free - evictable,
            evictable_chunks=evictable,
            chunk_tokens=host.chunk_tokens,
            chunk_bytes=self._chunk_bytes,
            entries=len(host),
            runs=host.runs,
            evictions=host.evictions,
            loads=self._loads,
            stores=self._stores,
            moving=len(self._flights),
            superseded=self._superseded,
            damaged=self._damaged,
            lost_tokens=self._lost,
            refused=self._without_room,
            restored=self.restored,
            restore_rejected=self.restore_rejected,
            departures=tuple(host.departed.items()),
        )
