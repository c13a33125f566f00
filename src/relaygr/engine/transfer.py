"""Copies between device pages and host memory in bounded parts, so that ranking can run between them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from relaygr.cache.interface import LoadPlan, PageSum, Refused, StorePlan
from relaygr.cache.tiered import TieredBooks
from relaygr.core.state import Ref, Touch
from relaygr.memory.host import HostPool, Piece, clear_tail, page_crc
from relaygr.memory.pool import PagePool


class Transfer(ABC):
    """The copy of one plan; its pages and chunks must be the mover's whenever a part runs.

    Attributes:
        bytes_total, bytes_done: keys and values, all layers.
        copies: made so far; one per part and stretch that is adjacent on both sides.
        damaged: what lies in host memory is not what was stored; nothing of it may be published.
    """

    plan: LoadPlan | StorePlan

    def __init__(self, pool: PagePool, host: HostPool, plan: LoadPlan | StorePlan) -> None:
        self._pool, self._host = pool, host
        self._place = pool.place(plan.pages)
        self._token, self._end = plan.start, plan.start + plan.tokens
        self.bytes_total = plan.tokens * pool.layout.token_bytes
        self.bytes_done = self.copies = 0
        self.damaged = False

    @property
    def done(self) -> bool:
        return self.damaged or self._token == self._end

    def step(self, budget_bytes: int) -> bool:
        """Copy about `budget_bytes`, in whole pages and at least one; True when nothing is left to do."""
        if self.done:
            return True
        layout, token = self._pool.layout, self._token
        page = token // layout.page_tokens
        pages = max(1, budget_bytes // layout.page_bytes)
        end = min(self._end, (page + pages) * layout.page_tokens)
        self._prepare(end)
        if not self.damaged:
            for piece in self._host.pieces(self._place, self.plan.runs, token, end - token):
                self._copy(piece)
                self.copies += 1
            self.bytes_done += (end - token) * layout.token_bytes
            self._token = end
        return self.done

    @abstractmethod
    def _prepare(self, end: int) -> None:
        """Before the rows from the last part's end up to `end` are copied."""

    @abstractmethod
    def _copy(self, piece: Piece) -> None: ...


class Loading(Transfer):
    """Host to device: checks each sampled page before its rows are copied, and leaves a clean tail."""

    plan: LoadPlan

    def __init__(self, pool: PagePool, host: HostPool, plan: LoadPlan) -> None:
        super().__init__(pool, host, plan)
        self.plan = plan
        size = pool.layout.page_tokens
        self._stored = sum(run.tokens for run in plan.runs)
        self._unchecked = [check for check in reversed(plan.sums) if (check.page + 1) * size > plan.start]

    def _prepare(self, end: int) -> None:
        plan, size = self.plan, self._pool.layout.page_tokens
        while self._unchecked and self._unchecked[-1].page * size < end:
            page, crc = self._unchecked.pop()
            if self._crc(page * size) != crc:
                self.damaged = True
                return
        if self._token == plan.start:
            for copy in plan.copies:
                self._pool.copy(copy.src, copy.dst, copy.tokens)
        if end == self._end and end % size:
            clear_tail(self._pool, plan.pages[-1], end % size)

    def _copy(self, piece: Piece) -> None:
        self._host.load(self._pool, piece)

    def _crc(self, first: int) -> int:
        """Of the stored rows of the page that begins at token `first`; a page never spans two runs."""
        rows = min(self._pool.layout.page_tokens, self._stored - first)
        run = next(run for run in self.plan.runs if first < run.start + run.tokens)
        return self._host.crc(run.offset + first - run.start, rows)


class Storing(Transfer):
    """Device to host.

    Attributes:
        sums: checksums of the sampled pages so far, of what the device held.
    """

    plan: StorePlan

    def __init__(self, pool: PagePool, host: HostPool, plan: StorePlan, checksum_share: float) -> None:
        super().__init__(pool, host, plan)
        self.plan = plan
        self.sums: tuple[PageSum, ...] = ()
        self._sampled = sample(len(plan.pages), checksum_share, plan.ticket)
        self._sampled.reverse()

    def _prepare(self, end: int) -> None:
        size = self._pool.layout.page_tokens
        while self._sampled and self._sampled[-1] * size < end:
            page = self._sampled.pop()
            rows = min(size, self._end - page * size)
            self.sums += (PageSum(page, page_crc(self._pool, self.plan.pages[page], rows)),)

    def _copy(self, piece: Piece) -> None:
        self._host.store(self._pool, piece)


class Mover:
    """Holds the bytes of both tiers and copies between them as plans say.

    Args:
        checksum_share: share of an entry's pages whose bytes are checked when it is loaded; at least one
            page of every entry, unless it is 0.
    """

    def __init__(self, pool: PagePool, host: HostPool, checksum_share: float = 0.01) -> None:
        """Raises ValueError for memories of different layouts, and for a share outside [0, 1]."""
        if pool.layout != host.layout:
            raise ValueError(f"pool {pool.layout.layout_id}, host {host.layout.layout_id}: not the same")
        if not 0 <= checksum_share <= 1:
            raise ValueError(f"checksum_share: {checksum_share} must be in [0, 1]")
        self.pool, self.host, self.checksum_share = pool, host, checksum_share

    def load(self, plan: LoadPlan) -> Loading:
        return Loading(self.pool, self.host, plan)

    def store(self, plan: StorePlan) -> Storing:
        return Storing(self.pool, self.host, plan, self.checksum_share)


class Carrier:
    """Moves states between the tiers: plans from the books, bytes by the mover, the result to the books.

    Every transfer must end in `land`, whatever became of it. All methods run where the books run.
    """

    def __init__(self, books: TieredBooks, mover: Mover) -> None:
        self._books, self._mover = books, mover
        self.loaded_bytes = self.stored_bytes = 0

    @property
    def memory(self) -> HostPool:
        """The bytes of the host tier."""
        return self._mover.host

    def load(self, ref: Ref, tokens: int, now_s: float, deadline_s: float) -> Loading | Refused:
        """Begin to bring the first `tokens` of `ref`, which the host has, to the device."""
        plan = self._books.prepare_load(ref, tokens, now_s, deadline_s)
        return plan if isinstance(plan, Refused) else self._mover.load(plan)

    def spill(self, ref: Ref, now_s: float) -> Storing | Refused:
        """Begin to move the entry that holds all of `ref` to the host."""
        plan = self._books.prepare_store(ref, ref.tokens, now_s)
        return plan if isinstance(plan, Refused) else self._mover.store(plan)

    def step(self, transfer: Transfer, budget_bytes: int) -> bool:
        """Copy a part; True when there is nothing more to do and `land` is due.

        That is also when the user was forgotten, the model swapped or the time over.
        """
        return not self._books.running(transfer.plan) or transfer.step(budget_bytes)

    def land(self, transfer: Transfer) -> bool:
        """End a transfer at any stage; True if its result is visible now. Again is a no-op."""
        ok = transfer.done and not transfer.damaged
        if isinstance(transfer, Loading):
            visible = self._books.complete_load(transfer.plan, ok, transfer.damaged)
            if visible:
                self._books.touch(transfer.plan.ref, Touch.LOAD)
                self.loaded_bytes += transfer.bytes_done
            return visible
        assert isinstance(transfer, Storing)
        visible = self._books.complete_store(transfer.plan, ok, transfer.sums)
        self.stored_bytes += transfer.bytes_done if visible else 0
        return visible


def sample(pages: int, share: float, shift: int) -> list[int]:
    """Which of `pages` pages are checked, ascending: evenly spaced, beginning elsewhere for each `shift`."""
    count = min(pages, max(1, round(share * pages))) if share else 0
    return sorted({(shift + place * pages // count) % pages for place in range(count)})
