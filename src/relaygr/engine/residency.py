"""Where a request's K/V live while it is served: leased pages, or a private buffer if the pool says no."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from relaygr.cache.books import DeviceBooks
from relaygr.cache.interface import Refused
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.core.errors import BackendError
from relaygr.core.state import Hit, Ref, Touch
from relaygr.engine.courier import Arrival
from relaygr.memory.pool import PagePool
from relaygr.memory.stores import PagedKv, PrivateKv


@dataclass(slots=True)
class Residency:
    """One request's right to its K/V; `keep` or `close` must follow.

    Attributes:
        store: what the kernel reads and writes; None for an empty history, or to keep nothing.
        cached: tokens already in the store.
        reason: why the prefix will not be in the cache afterwards; empty when it will.
        loaded: of the cached tokens, those that came from host memory for this request.
        arrival: their copy, which may still go on.
        error: the answer, if there is nothing to score.
    """

    store: PagedKv | PrivateKv | None
    cached: int
    reason: str
    ref: Ref | None = None
    lease: ReadLease | WriteLease | None = None
    loaded: int = 0
    arrival: Arrival | None = None
    error: BackendError | None = None


class ResidencyDesk:
    """Turns a reference into pages or a private buffer, and publishes what was computed."""

    def __init__(self, books: DeviceBooks, pool: PagePool, lease_s: float) -> None:
        self._books = books
        self._pool = pool
        self._lease_s = lease_s

    def private(self, tokens: int, reason: str) -> Residency:
        """Serve without the cache."""
        store = PrivateKv(self._pool.layout, tokens) if tokens else None
        return Residency(store, 0, reason)

    @staticmethod
    def nothing(reason: str) -> Residency:
        """Serve every pass anew: K/V live no longer than a pass."""
        return Residency(None, 0, reason)

    def open(self, ref: Ref, now_s: float, needed: bool = True) -> Residency:
        """The longest cached prefix of `ref`, and room for the rest if there is some.

        Without room a private buffer, or nothing if the K/V are not `needed` for an answer.
        """
        if not ref.tokens:
            return Residency(None, 0, "")
        deadline = now_s + self._lease_s
        answer = self._books.lookup(ref)
        if isinstance(answer, Hit) and answer.device_end == ref.tokens:
            read = self._books.lease(ref, ref.tokens, "engine", now_s, deadline)
            if isinstance(read, ReadLease):
                store = PagedKv(self._pool, read.pages, ref.tokens, read.clean_tail)
                return Residency(store, ref.tokens, "", ref, read)
        write = self._books.append(ref, "engine", now_s, deadline)
        if isinstance(write, Refused):
            reason = str(write.reason)
            return self.private(ref.tokens, reason) if needed else self.nothing(reason)
        with ExitStack() as undo:
            undo.callback(write.abort)
            self._pool.zero(write.fresh)
            for copy in write.copies:
                self._pool.copy(copy.src, copy.dst, copy.tokens)
            reused = write.reused_tokens
            paged = PagedKv(self._pool, write.pages, ref.tokens, clean_tail=True, filled=reused)
            undo.pop_all()
        return Residency(paged, reused, "", ref, write)

    @staticmethod
    def quantized(residency: Residency) -> int:
        """Of the cached tokens, up to the last that came back rounded from host memory."""
        arrival = residency.arrival
        if arrival is not None:
            return arrival.cached if arrival.loading.rounds else 0
        return residency.lease.rounded_tokens if residency.lease is not None else 0

    def arriving(self, ref: Ref, arrival: Arrival) -> Residency:
        """Pages that are being filled by a copy, and behind it by a pass: each layer waits for its rows."""
        pages, cached = arrival.pages, arrival.cached
        with ExitStack() as undo:
            undo.callback(arrival.drop)
            # The copy leaves zeros behind its last row; the pages behind it are the pass's alone.
            self._pool.zero(pages[self._pool.layout.pages_for(cached) :])
            paged = PagedKv(self._pool, pages, ref.tokens, clean_tail=True, filled=cached, gate=arrival.gate)
            undo.pop_all()
        return Residency(paged, cached, "", ref, loaded=arrival.loading.plan.tokens, arrival=arrival)

    def keep(self, residency: Residency, now_s: float) -> str:
        """Publish what was computed and let go; returns why the prefix is not cached, or ""."""
        if residency.arrival is not None:
            return self._keep_arrived(residency.arrival, residency)
        lease, ref = residency.lease, residency.ref
        if lease is None or ref is None:
            return residency.reason
        if isinstance(lease, WriteLease):
            if not lease.publish(now_s):
                return "forgotten" if lease.cancelled else "overdue"
            self._books.touch(ref, Touch.APPEND)
        else:
            self._books.touch(ref, Touch.HIT)
            lease.release()
        return ""

    def drop(self, residency: Residency) -> None:
        """Let go, and forget what is cached of the user: it gave scores that are not finite."""
        self.close(residency)
        if residency.ref is not None:
            self._books.forget(residency.ref.tenant, residency.ref.user)

    def close(self, residency: Residency) -> None:
        """Let go without publishing; after `keep` a no-op."""
        if residency.arrival is not None:
            residency.arrival.drop()
        if residency.lease is not None:
            residency.lease.release()

    def _keep_arrived(self, arrival: Arrival, residency: Residency) -> str:
        if not arrival.keep():
            return "lost"
        computed = arrival.ref.tokens > residency.cached
        self._books.touch(arrival.ref, Touch.APPEND if computed else Touch.HIT)
        return ""
