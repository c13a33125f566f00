"""Copies between device pages and host memory: in bounded parts, so that ranking can run between them, or
layer by layer on a lane, so that ranking can run beside them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from relaygr.cache.interface import LoadPlan, PageSum, Refused, StorePlan
from relaygr.cache.tiered import TieredBooks
from relaygr.core.errors import BackendError
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Ref, Touch
from relaygr.memory.host import HostPool, Piece, clear_tail, page_crc
from relaygr.memory.lane import Ticket
from relaygr.memory.pool import PagePool
from relaygr.memory.staging import Staging

log = logging.getLogger("relaygr.engine")


class Transfer(ABC):
    """The copy of one plan; its pages and chunks must be the mover's whenever a part runs.

    It is made either by `step`, a stretch of tokens at a time, or by `carry`, a layer at a time and on a
    thread of its own: then nobody asks it anything but its ticket until that is finished.

    Attributes:
        bytes_total, bytes_done: keys and values, all layers, as they lie in host memory.
        copies: made so far; one per part and stretch that is adjacent on both sides, or per layer and run.
        damaged: what lies in host memory is not what was stored; nothing of it may be published.
        failed: why it cannot go on; empty as long as it can.
        ticket: of the lane that carries it; None without.
    """

    plan: LoadPlan | StorePlan

    def __init__(
        self, pool: PagePool, host: HostPool, plan: LoadPlan | StorePlan, staging: Staging | None = None
    ) -> None:
        self._pool, self._host, self._staging = pool, host, staging
        self._place = pool.place(plan.pages)
        self._token, self._end = plan.start, plan.start + plan.tokens
        self._pieces: tuple[Piece, ...] = ()
        self.bytes_total = plan.tokens * host.token_bytes
        self.bytes_done = self.copies = 0
        self.damaged, self.failed = False, ""
        self.ticket: Ticket | None = None

    @property
    def done(self) -> bool:
        return self.damaged or self._token == self._end

    @property
    def owner(self) -> tuple[Tenant, UserId]:
        return self.plan.ref.tenant, self.plan.ref.user

    @property
    def rounds(self) -> bool:
        """Whether the host does not hold quite what the device does."""
        return not self._host.format.exact

    @property
    def layers(self) -> int:
        return self._pool.layout.layers

    @property
    def layer_bytes(self) -> int:
        form, layout = self._host.format, self._pool.layout
        return self.plan.tokens * max(form.row_bytes(layout, layer) for layer in range(layout.layers))

    def carry(self, layer: int) -> None:
        """Copy all rows of a layer, in one copy for each run of host memory.

        Raises:
            BackendError: what lies in host memory is not what was stored; known with the last layer, and
                before anybody can have it.
        """
        if not layer:
            places = self._host.stretches(self._place, self.plan.runs, self.plan.start, self.plan.tokens)
            self._pieces = tuple(places)
            self._begin()
        for piece in self._pieces:
            self.copies += self._copy_layer(piece, layer)
        self._layer_copied(layer)
        self.bytes_done += self.plan.tokens * self._host.format.row_bytes(self._pool.layout, layer)
        if layer == self.layers - 1:
            self._prepare(self._end)
            if self.damaged:
                raise BackendError("what lies in host memory is not what was stored")
            self._copied(self._end)
            self._token = self._end

    def step(self, budget_bytes: int) -> bool:
        """Copy about `budget_bytes`, in whole pages and at least one; True when nothing is left to do."""
        if self.done:
            return True
        layout, token = self._pool.layout, self._token
        page = token // layout.page_tokens
        pages = max(1, budget_bytes // layout.page_bytes)
        end = min(self._end, (page + pages) * layout.page_tokens)
        if token == self.plan.start:
            self._begin()
        self._prepare(end)
        if not self.damaged:
            for piece in self._host.pieces(self._place, self.plan.runs, token, end - token):
                self._copy(piece)
                self.copies += 1
            self._copied(end)
            self.bytes_done += (end - token) * self._host.token_bytes
            self._token = end
        return self.done

    @abstractmethod
    def _begin(self) -> None:
        """Before anything is copied."""

    @abstractmethod
    def _prepare(self, end: int) -> None:
        """Before the rows from the last part's end up to `end` are copied, or after all of them were."""

    @abstractmethod
    def _copy(self, piece: Piece) -> None: ...

    @abstractmethod
    def _copied(self, end: int) -> None:
        """After the rows up to `end` are copied."""

    @abstractmethod
    def _copy_layer(self, piece: Piece, layer: int) -> int:
        """Returns the number of copies."""

    @abstractmethod
    def _layer_copied(self, layer: int) -> None:
        """All rows of a layer are there."""

    def _host_crc(self, first: int, stored: int) -> int:
        """Of the page that begins at token `first` of `stored`; a page never spans two runs."""
        rows = min(self._pool.layout.page_tokens, stored - first)
        run = next(run for run in self.plan.runs if first < run.start + run.tokens)
        return self._host.crc(run.offset + first - run.start, rows)


class Loading(Transfer):
    """Host to device: checks each sampled page before its rows are copied, and leaves a clean tail."""

    plan: LoadPlan

    def __init__(
        self, pool: PagePool, host: HostPool, plan: LoadPlan, staging: Staging | None = None
    ) -> None:
        super().__init__(pool, host, plan, staging)
        self.plan = plan
        size = pool.layout.page_tokens
        self._stored = sum(run.tokens for run in plan.runs)
        self._unchecked = [check for check in reversed(plan.sums) if (check.page + 1) * size > plan.start]

    def _begin(self) -> None:
        for copy in self.plan.copies:
            self._pool.copy(copy.src, copy.dst, copy.tokens)

    def _prepare(self, end: int) -> None:
        size = self._pool.layout.page_tokens
        while self._unchecked and self._unchecked[-1].page * size < end:
            page, crc = self._unchecked.pop()
            if self._host_crc(page * size, self._stored) != crc:
                self.damaged = True
                return
        if self.ticket is None and end == self._end:
            self._clear(None)

    def _copy(self, piece: Piece) -> None:
        self._host.load(self._pool, piece)

    def _copied(self, end: int) -> None:
        """Nothing is left to do: what was read was checked before."""

    def _copy_layer(self, piece: Piece, layer: int) -> int:
        if self._staging is not None:
            return self._staging.load_layer(self._host, self._pool, piece, layer)
        self._host.load_layer(self._pool, piece, layer)
        return 1

    def _layer_copied(self, layer: int) -> None:
        self._clear(layer)

    def _clear(self, layer: int | None) -> None:
        """Zeros behind the last row; further pages are somebody else's."""
        size = self._pool.layout.page_tokens
        if self._end % size:
            clear_tail(self._pool, self.plan.pages[self._end // size], self._end % size, layer)


class Storing(Transfer):
    """Device to host.

    Attributes:
        sums: checksums of the sampled pages so far: of what the device held, which also finds a copy that
            went wrong, or of what the host holds where that is rounded.
    """

    plan: StorePlan

    def __init__(
        self,
        pool: PagePool,
        host: HostPool,
        plan: StorePlan,
        checksum_share: float,
        staging: Staging | None = None,
    ) -> None:
        super().__init__(pool, host, plan, staging)
        self.plan = plan
        self.sums: tuple[PageSum, ...] = ()
        self._sampled = sample(len(plan.pages), checksum_share, plan.ticket)
        self._sampled.reverse()

    def _begin(self) -> None:
        """A store changes nothing on the device."""

    def _layer_copied(self, layer: int) -> None:
        """Nothing is left to do."""

    def _prepare(self, end: int) -> None:
        if self._host.format.exact:
            self._sum(end)

    def _copied(self, end: int) -> None:
        if not self._host.format.exact:
            self._sum(end)

    def _sum(self, end: int) -> None:
        size = self._pool.layout.page_tokens
        while self._sampled and self._sampled[-1] * size < end:
            page = self._sampled.pop()
            self.sums += (PageSum(page, self._crc(page)),)

    def _crc(self, page: int) -> int:
        size = self._pool.layout.page_tokens
        if not self._host.format.exact:
            return self._host_crc(page * size, self._end)
        return page_crc(self._pool, self.plan.pages[page], min(size, self._end - page * size))

    def _copy(self, piece: Piece) -> None:
        self._host.store(self._pool, piece)

    def _copy_layer(self, piece: Piece, layer: int) -> int:
        if self._staging is not None:
            return self._staging.store_layer(self._host, self._pool, piece, layer)
        self._host.store_layer(self._pool, piece, layer)
        return 1


class Mover:
    """Holds the bytes of both tiers and copies between them as plans say.

    Args:
        checksum_share: share of an entry's pages whose bytes are checked when it is loaded; at least one
            page of every entry, unless it is 0.
        staging: what copies by layer go through; None copies them directly.
    """

    def __init__(
        self,
        pool: PagePool,
        host: HostPool,
        checksum_share: float = 0.01,
        staging: Staging | None = None,
    ) -> None:
        """Raises ValueError for memories of different layouts, and for a share outside [0, 1]."""
        if pool.layout != host.layout:
            raise ValueError(f"pool {pool.layout.layout_id}, host {host.layout.layout_id}: not the same")
        if not 0 <= checksum_share <= 1:
            raise ValueError(f"checksum_share: {checksum_share} must be in [0, 1]")
        self.pool, self.host, self.checksum_share = pool, host, checksum_share
        self.staging = staging

    def load(self, plan: LoadPlan) -> Loading:
        return Loading(self.pool, self.host, plan, self.staging)

    def store(self, plan: StorePlan) -> Storing:
        return Storing(self.pool, self.host, plan, self.checksum_share, self.staging)


class Carrier:
    """Moves states between the tiers: plans from the books, bytes by the mover, the result to the books.

    Every transfer must end in `land`, whatever became of it. All methods run where the books run.
    """

    def __init__(self, books: TieredBooks, mover: Mover) -> None:
        self._books, self._mover = books, mover
        self.loaded_bytes = self.stored_bytes = 0
        self.failed_loads = self.failed_stores = 0  # those that no lane carried
        self.failure = ""  # of the last load of them

    @property
    def memory(self) -> HostPool:
        """The bytes of the host tier."""
        return self._mover.host

    @property
    def staging_bytes(self) -> int:
        """Of all staging buffers; 0 where copies are direct."""
        return self._mover.staging.nbytes if self._mover.staging is not None else 0

    def load(
        self, ref: Ref, tokens: int, now_s: float, deadline_s: float, whole: bool = False
    ) -> Loading | Refused:
        """Begin to bring the first `tokens` of `ref`, which the host has, to the device.

        With `whole` there is room for all of `ref`, whose other rows must be there before it lands.
        """
        plan = self._books.prepare_load(ref, tokens, now_s, deadline_s, whole)
        return plan if isinstance(plan, Refused) else self._mover.load(plan)

    def spill(self, ref: Ref, now_s: float) -> Storing | Refused:
        """Begin to move the entry that holds all of `ref` to the host."""
        plan = self._books.prepare_store(ref, ref.tokens, now_s)
        return plan if isinstance(plan, Refused) else self._mover.store(plan)

    def step(self, transfer: Transfer, budget_bytes: int) -> bool:
        """Copy a part; True when there is nothing more to do and `land` is due.

        That is also when the user was forgotten, the model swapped, the time over, or the copy failed.
        """
        if transfer.failed or not self._books.running(transfer.plan):
            return True
        try:
            return transfer.step(budget_bytes)
        except Exception as error:
            log.exception("a copy failed")
            transfer.failed = f"{type(error).__name__}: {error}"
            return True

    def land(self, transfer: Transfer) -> bool:
        """End a transfer at any stage; True if its result is visible now. Again is a no-op.

        Nothing of it may be on its way on a lane.
        """
        assert transfer.ticket is None or transfer.ticket.finished, "a copy is running"
        ok = transfer.done and not transfer.damaged and not transfer.failed
        if isinstance(transfer, Loading):
            if transfer.ticket is None and (transfer.failed or transfer.damaged):
                self.failed_loads += 1
                self.failure = transfer.failed or "what lies in host memory is not what was stored"
            visible = self._books.complete_load(transfer.plan, ok, transfer.damaged)
            if visible:
                self._books.touch(transfer.plan.ref, Touch.LOAD)
                self.loaded_bytes += transfer.bytes_done
            return visible
        assert isinstance(transfer, Storing)
        self.failed_stores += transfer.ticket is None and bool(transfer.failed)
        visible = self._books.complete_store(transfer.plan, ok, transfer.sums)
        self.stored_bytes += transfer.bytes_done if visible else 0
        return visible


def sample(pages: int, share: float, shift: int) -> list[int]:
    """Which of `pages` pages are checked, ascending: evenly spaced, beginning elsewhere for each `shift`."""
    count = min(pages, max(1, round(share * pages))) if share else 0
    return sorted({(shift + place * pages // count) % pages for place in range(count)})
