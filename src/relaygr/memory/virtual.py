"""A lane in virtual time with a modelled speed: it stands in for the copy engine of an accelerator."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.core.clock import ManualClock
from relaygr.memory.lane import Declined, Haul, Lane, Lanes, LaneStats, Rush, Ticket
from relaygr.memory.lane_queue import Meter, Waiting, carried
from relaygr.memory.lanes import QUEUE_MAX


def virtual_lanes(
    clock: ManualClock, bytes_per_s: float, latency_s: float = 0.0, queue_max: int = QUEUE_MAX
) -> Lanes:
    """Two directions that do not share their speed, as the copy engines of an accelerator."""
    return Lanes(*(VirtualLane(clock, bytes_per_s, latency_s, queue_max) for _ in range(2)))


class VirtualLane(Lane):
    """Copies bytes for real, and takes the modelled time for it: on its own, beside whatever else takes time.

    What it does up to a moment is worked out when somebody looks. Waiting moves the clock to the moment at
    which the layer is there. One thread only.

    Args:
        bytes_per_s: of every copy.
        latency_s: added to each layer.
    """

    def __init__(self, clock: ManualClock, bytes_per_s: float, latency_s: float, queue_max: int) -> None:
        """Raises ValueError for speeds that are not positive, a negative latency, no room for a haul."""
        if latency_s < 0 or queue_max < 1:
            raise ValueError(f"latency_s: {latency_s}, queue_max: {queue_max}: too small")
        self._clock, self._latency_s = clock, latency_s
        self._meter, self._waiting = Meter(bytes_per_s), Waiting(queue_max)
        self._speed = bytes_per_s
        self._launched_s: dict[Ticket, float] = {}
        self._current: tuple[Ticket, float] | None = None  # what is being copied, and until when
        self._free_s = float("-inf")
        self._closed = False

    def launch(
        self, haul: Haul, rush: Rush, deadline_s: float, on_end: Callable[[], None] | None = None
    ) -> Ticket | Declined:
        self.advance(self._clock.now_s())
        if self._closed:
            return self._meter.refuse(Declined.CLOSED)
        if len(self._waiting) >= self._waiting.limit:
            return self._meter.refuse(Declined.FULL)
        now = self._clock.now_s()
        if now + self.estimate_s(haul.layers * haul.layer_bytes, rush) > deadline_s:
            return self._meter.refuse(Declined.LATE)
        ticket = _VirtualTicket(self, haul, rush, deadline_s, on_end)
        self._waiting.add(ticket)
        self._launched_s[ticket] = now
        return ticket

    def estimate_s(self, nbytes: int, rush: Rush) -> float:
        return (self._waiting.ahead_bytes(rush) + nbytes) / self._speed

    def stats(self) -> LaneStats:
        self.advance(self._clock.now_s())
        return self._meter.stats(len(self._waiting))

    def close(self) -> None:
        self._closed = True
        for ticket in self._waiting:
            ticket.cancel("the lane is closed")
        self.advance(self._clock.now_s())

    def advance(self, until_s: float) -> None:
        """Do whatever has been done by then."""
        while (end_s := self._begin(until_s)) is not None and end_s <= until_s:
            self._end(end_s)

    def await_layer(self, ticket: Ticket, layer: int, timeout_s: float) -> bool:
        """Let time pass until a layer is there, at most so much; False if it is not, or never will be."""
        limit_s = self._clock.now_s() + max(timeout_s, 0.0)
        self.advance(self._clock.now_s())
        while ticket.ready <= layer and not ticket.ending:
            end_s = self._begin(limit_s)
            if end_s is None or end_s > limit_s:
                if not ticket.ending:
                    self._pass_to(limit_s)
                break
            self._pass_to(end_s)
            self._end(end_s)
        return ticket.ready > layer

    def await_end(self, ticket: Ticket, timeout_s: float | None) -> bool:
        """Let time pass until nothing of it is copied any more."""
        limit_s = float("inf") if timeout_s is None else self._clock.now_s() + timeout_s
        while not ticket.finished:
            end_s = self._begin(limit_s)
            if end_s is None or end_s > limit_s:
                break
            self._pass_to(end_s)
            self._end(end_s)
        return ticket.finished

    def _begin(self, until_s: float) -> float | None:
        """When the copy ends that goes on, or could begin by then; None if there is none."""
        while self._current is None:
            for gone in self._waiting.drop_finished():
                self._meter.ended[gone.state] += 1
                del self._launched_s[gone]
            ticket = self._waiting.head(set())
            if ticket is None:
                return None
            begin_s = max(self._free_s, self._launched_s[ticket])
            if begin_s > until_s:
                return None
            if begin_s >= ticket.deadline_s:
                ticket.fail("it was not done in time")
            elif ticket.begin():
                spent_s = self._latency_s + ticket.haul.layer_bytes / self._speed
                self._current = ticket, begin_s + spent_s
        return self._current[1]

    def _end(self, end_s: float) -> None:
        assert self._current is not None
        ticket, _ = self._current
        error = carried(ticket)
        spent_s = self._latency_s + ticket.haul.layer_bytes / self._speed
        self._current, self._free_s = None, end_s
        self._meter.copied(0 if error else ticket.haul.layer_bytes, spent_s)
        ticket.copied(error)

    def _pass_to(self, moment_s: float) -> None:
        self._clock.advance(max(moment_s - self._clock.now_s(), 0.0))


class _VirtualTicket(Ticket):
    """Its waits take virtual time."""

    def __init__(
        self,
        lane: VirtualLane,
        haul: Haul,
        rush: Rush,
        deadline_s: float,
        on_end: Callable[[], None] | None,
    ) -> None:
        super().__init__(haul, rush, deadline_s, on_end)
        self._lane = lane

    def wait(self, layer: int, timeout_s: float) -> bool:
        return self._lane.await_layer(self, layer, timeout_s)

    def settle(self, timeout_s: float | None = None) -> bool:
        return self._lane.await_end(self, timeout_s)
