"""Copies on lanes, beside the executor: who waits for which layer, and what becomes of a copy that fails.

The books are asked and told on the executor's thread only; a lane knows its copies and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from relaygr.cache.interface import Refused
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Ref
from relaygr.core.units import MIB
from relaygr.engine.transfer import Carrier, Loading, Transfer
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import SAME
from relaygr.memory.lane import Declined, Lanes, LaneStats, Rush, State, Ticket
from relaygr.memory.lanes import thread_lanes
from relaygr.memory.pool import PagePool
from relaygr.memory.staging import Staging

log = logging.getLogger("relaygr.engine")


class LoadLostError(Exception):
    """A pass reads rows that are not coming, or not in time; its `Arrival` says why."""


@dataclass(frozen=True, slots=True)
class CopyStats:
    """Counters of the copies between the tiers since the start.

    Attributes:
        late_loads: that a pass had begun to use, and that did not come, or not in time.
        failed_loads, failed_stores: that ended in an error or as damaged.
        declined_loads: not begun, because they would have been late or too many waited.
        staging_bytes: of all staging buffers; 0 where copies are direct.
        h2d, d2h: of each lane; None without lanes.
    """

    late_loads: int = 0
    failed_loads: int = 0
    failed_stores: int = 0
    declined_loads: int = 0
    staging_bytes: int = 0
    h2d: LaneStats | None = None
    d2h: LaneStats | None = None


class Arrival:
    """A load that a pass uses while it still goes on; `keep` or `drop` must follow.

    Attributes:
        lost: why the pass must do without it; empty as long as it need not.
    """

    def __init__(self, courier: Courier, loading: Loading, ticket: Ticket, clock: Clock, by_s: float) -> None:
        self._courier, self._clock = courier, clock
        self.loading, self.ticket, self.by_s = loading, ticket, by_s
        self.lost = ""

    @property
    def ref(self) -> Ref:
        return self.loading.plan.ref

    @property
    def pages(self) -> tuple[int, ...]:
        return self.loading.plan.pages

    @property
    def cached(self) -> int:
        """Tokens that need not be computed, those that the device had included."""
        return self.loading.plan.start + self.loading.plan.tokens

    def gate(self, layer: int) -> None:
        """Until the rows of a layer are there.

        Raises:
            LoadLostError: they are not coming, or not in time.
        """
        if not self.ticket.wait(layer, self.by_s - self._clock.now_s()):
            if not self.lost:
                self._courier.late_loads += 1
            self.lost = self.ticket.reason or "it was not there in time"
            raise LoadLostError(self.lost)

    def keep(self) -> bool:
        """All rows are there, whoever wrote them: publish them; True if they are visible now."""
        return self._courier.land(self.loading)

    def drop(self) -> None:
        """Nobody uses it any more; nothing of it becomes visible. After `keep` a no-op."""
        self._courier.drop(self.loading)


class Courier:
    """Launches transfers and ends them; all methods run where the books run.

    A transfer that is dropped while one of its layers is being copied keeps its pages and chunks until that
    copy has ended: `poll` lets them go.
    """

    def __init__(self, carrier: Carrier, lanes: Lanes, clock: Clock) -> None:
        self._carrier, self._lanes, self._clock = carrier, lanes, clock
        self._under_way: set[Transfer] = set()
        self._dropped: set[Transfer] = set()
        self.late_loads = self.failed_loads = self.failed_stores = self.declined_loads = 0

    def __len__(self) -> int:
        """Transfers that have not landed."""
        return len(self._under_way)

    def stats(self) -> CopyStats:
        """Without what is not the lanes'."""
        return CopyStats(
            late_loads=self.late_loads,
            failed_loads=self.failed_loads,
            failed_stores=self.failed_stores,
            declined_loads=self.declined_loads,
            h2d=self._lanes.h2d.stats(),
            d2h=self._lanes.d2h.stats(),
        )

    def arrive(
        self, ref: Ref, tokens: int, nbytes: int, now_s: float, by_s: float
    ) -> Arrival | Refused | Declined:
        """Begin to bring the first `tokens` of `ref` for a pass that computes the others.

        Args:
            nbytes: about how much that is.
            by_s: when all of it has to be there.
        """
        if not self.in_time(nbytes, now_s, by_s):
            self.declined_loads += 1
            self._lanes.h2d.passed_by()
            return Declined.LATE
        loading = self._carrier.load(ref, tokens, now_s, by_s, whole=True)
        if isinstance(loading, Refused):
            return loading
        ticket = self.launch(loading, Rush.RANK, by_s)
        if isinstance(ticket, Declined):
            return ticket
        return Arrival(self, loading, ticket, self._clock, by_s)

    def in_time(self, nbytes: int, now_s: float, by_s: float) -> bool:
        """Whether a load of so many bytes that a ranking waits for would be there by then."""
        return now_s + self._lanes.h2d.estimate_s(nbytes, Rush.RANK) <= by_s

    def queue_s(self) -> float:
        """Until a load that a ranking waits for would begin."""
        return self._lanes.h2d.estimate_s(0, Rush.RANK)

    def launch(
        self,
        transfer: Transfer,
        rush: Rush,
        deadline_s: float,
        on_end: Callable[[], None] | None = None,
    ) -> Ticket | Declined:
        """Begin the copies of a plan; one that is declined has landed."""
        lane = self._lanes.h2d if isinstance(transfer, Loading) else self._lanes.d2h
        ticket = lane.launch(transfer, rush, deadline_s, on_end)
        if isinstance(ticket, Declined):
            self.declined_loads += isinstance(transfer, Loading)
            transfer.failed = f"the lane declined it: {ticket}"
            self._carrier.land(transfer)
            return ticket
        transfer.ticket = ticket
        self._under_way.add(transfer)
        return ticket

    def land(self, transfer: Transfer) -> bool:
        """End a transfer that is complete; True if its result is visible now. Again is a no-op."""
        if transfer not in self._under_way:
            return False
        ticket = transfer.ticket
        assert ticket is not None
        if not ticket.finished:
            self.drop(transfer)
            return False
        self._count(transfer, ticket)
        self._under_way.discard(transfer)
        self._dropped.discard(transfer)
        return self._carrier.land(transfer)

    def drop(self, transfer: Transfer) -> None:
        """Nothing of it becomes visible; what it holds is free when its running copy has ended."""
        if transfer not in self._under_way:
            return
        assert transfer.ticket is not None
        transfer.ticket.cancel()
        transfer.failed = transfer.failed or "it was dropped"
        self._dropped.add(transfer)
        if transfer.ticket.finished:
            self.land(transfer)

    def poll(self, now_s: float) -> bool:
        """Let go of what was dropped, as far as no copy runs; False if some that is overdue is still copied.

        Then nothing may take pages away whose time is over.
        """
        for transfer in tuple(self._dropped):
            assert transfer.ticket is not None
            if transfer.ticket.finished:
                self.land(transfer)
        return not any(_overdue(transfer, now_s) for transfer in self._under_way)

    def forget(self, owner: tuple[Tenant, UserId]) -> None:
        """End everything of a user; waits for running copies."""
        for transfer in [one for one in self._under_way if one.owner == owner]:
            self.drop(transfer)
            assert transfer.ticket is not None
            transfer.ticket.settle()
            self.land(transfer)

    def close(self) -> None:
        self._lanes.close()

    def _count(self, transfer: Transfer, ticket: Ticket) -> None:
        if ticket.state is State.FAILED:
            if isinstance(transfer, Loading):
                self.failed_loads += 1
            else:
                self.failed_stores += 1
            log.warning("a copy of user %r failed: %s", transfer.plan.ref.user, ticket.reason)


def _overdue(transfer: Transfer, now_s: float) -> bool:
    ticket = transfer.ticket
    return ticket is not None and not ticket.finished and ticket.deadline_s <= now_s


def staging_for(pool: PagePool, host: HostConfig, form: HostFormat = SAME) -> Staging | None:
    """Buffers on a device that is not ordinary memory; where it is, copies are direct."""
    if pool.device.type == "cpu":
        return None
    staging = Staging(pool.layout, host.staging_tokens, pool.device, form)
    log.info(
        "staging: 2 buffers in each direction of %d tokens, %.1f MiB each, %.1f MiB in all",
        staging.tokens,
        staging.buffer_bytes / MIB,
        staging.nbytes / MIB,
    )
    return staging


def courier_for(
    carrier: Carrier | None, host: HostConfig, clock: Clock, lanes: Lanes | None
) -> Courier | None:
    """What copies beside the engine; None where nothing is copied, or the engine does it."""
    if carrier is None or (lanes is None and not host.copy_threads):
        return None
    return Courier(carrier, lanes or thread_lanes(host.copy_threads, clock), clock)
