"""Pinned, counted rights to read or write pages, with an owner and an end; the table that expires them."""

from __future__ import annotations

import heapq
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import msgspec

from relaygr.cache.entry import Identity
from relaygr.cache.pages import PageIds
from relaygr.core.state import Ref


class PageCopy(NamedTuple):
    """Copy the first `tokens` rows of page `src` to page `dst` on every layer; zero the rest of `dst`."""

    src: int
    dst: int
    tokens: int


class LeaseKeeper(Protocol):
    """The books a lease came from; what the methods of a lease mean is said there."""

    def release(self, lease: Lease) -> None: ...

    def publish(self, lease: WriteLease, now_s: float) -> bool: ...


class Lease(msgspec.Struct, eq=False, kw_only=True):
    """A pin on pages until `release`, the end of the `with` block, or a sweep after `expires_s`.

    Attributes:
        keeper: the books it came from.
        identity, owner: whose state, and who asked.
        pins: every page this lease pins; the first `page_count` of them are its `pages`.
        tokens: rows covered by `pages`.
        expires_s: from then on `sweep` may reclaim the pages.
        rounded_tokens: of the rows that are there, the ones behind so many never came back rounded from a
            lower tier.
        live: False once the lease has ended; a holder that may be late checks it before touching the pages.
    """

    keeper: LeaseKeeper
    identity: Identity
    owner: str
    expires_s: float
    pins: PageIds
    page_count: int
    tokens: int
    rounded_tokens: int = 0
    live: bool = True

    @property
    def pages(self) -> tuple[int, ...]:
        """Page ids in token order; nobody else gets them while the lease is live."""
        return tuple(self.pins[: self.page_count].tolist())

    def release(self) -> None:
        """Let go of the pages; again is a no-op."""
        self.keeper.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ReadLease(Lease, eq=False, kw_only=True):
    """The right to read the first `tokens` rows; they do not change while the lease is live.

    `clean_tail` says that slots behind `tokens` in the last page are zero and stay so until release; it is
    True when `tokens` fills whole pages or is all that the entry holds and no writer has been in that page.
    """

    clean_tail: bool


class WriteLease(Lease, eq=False, kw_only=True):
    """The one right to write a user's next version: rows `reused_tokens` .. `tokens - 1` of `pages`.

    The holder first zeroes `fresh`, then performs `copies`, then writes the rows; slots behind the last row
    written are then zero. Nothing is visible before `publish`; leaving without it is `abort`, after which the
    version before is as valid as ever. `cancelled` turns True when the user was forgotten or the model
    swapped: the pages stay the holder's until it lets go, but `publish` will answer False.
    """

    ref: Ref
    reused_tokens: int
    shared_pages: int  # with the version before
    fresh: tuple[int, ...]
    copies: tuple[PageCopy, ...]
    cancelled: bool = False

    def publish(self, now_s: float) -> bool:
        """Make the new version visible and let go.

        Returns False, with everything given back, when the user was forgotten, the model swapped, the lease
        expired or already ended.
        """
        return self.keeper.publish(self, now_s)

    def abort(self) -> None:
        """Let go without a new version; after `publish` or again a no-op."""
        self.release()


class LeaseTable:
    """All live leases, soonest expiry first; O(log n), and bounded by the number of live leases."""

    __slots__ = ("_heap", "_live", "_next")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Lease]] = []
        self._live: dict[Lease, float] = {}  # since when, oldest first
        self._next = 0  # breaks ties, since leases have no order

    def __len__(self) -> int:
        return len(self._live)

    @property
    def oldest_s(self) -> float | None:
        """When the oldest live one was given out; None without any."""
        return next(iter(self._live.values()), None)

    def add(self, lease: Lease, now_s: float) -> None:
        self._live[lease] = now_s
        heapq.heappush(self._heap, (lease.expires_s, self._next, lease))
        self._next += 1
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [item for item in self._heap if item[2].live]
            heapq.heapify(self._heap)

    def remove(self, lease: Lease) -> None:
        self._live.pop(lease, None)

    def pop_overdue(self, now_s: float) -> Lease | None:
        """A live lease whose expiry is not after `now_s`; the caller ends it."""
        while self._heap and self._heap[0][0] <= now_s:
            lease = heapq.heappop(self._heap)[2]
            if lease.live:
                return lease
        return None
