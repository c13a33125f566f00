"""What becomes of a prefix before and after ranking: held, joined, reloaded, extended, computed; spilled."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from relaygr.core.state import Prefix, Ref
from relaygr.relay.link import ReloadLink, Turn
from relaygr.relay.returns import Returns

K = TypeVar("K", bound=Hashable)


class Step(StrEnum):
    """How a prefix gets ready, the cheapest first."""

    HOLD = "hold"  # it is ready: extend the hold
    JOIN = "join"  # it is on its way: wait for it
    RELOAD = "reload"  # copy it from the host
    EXTEND = "extend"  # compute what is missing behind the part that is there
    COMPUTE = "compute"


class Why(StrEnum):
    """The reason for a step: the first of the ladder that applied, or why a reload did not."""

    READY = "ready"
    IN_FLIGHT = "in_flight"
    ON_HOST = "on_host"
    NOT_ON_HOST = "not_on_host"
    LATE = "late"  # the reload would miss its deadline
    SLOWER = "slower"  # computing takes less time than the reload
    FAILED = "failed"  # the reload began and failed


class Spill(StrEnum):
    """Whether a prefix is worth a place in host memory; all but the first say why not."""

    YES = "yes"
    LIVE = "live"  # not consumed yet
    IN_FLIGHT = "in_flight"  # being produced or reloaded again
    ON_HOST = "on_host"
    UNLIKELY = "unlikely"  # the user is not expected back in time
    QUEUE_FULL = "queue_full"


class Decision(msgspec.Struct, frozen=True):
    """A step and its reason.

    Attributes:
        tokens: at the head of the prefix that need not be computed once the step is done.
    """

    step: Step
    why: Why
    tokens: int


@dataclass(slots=True)
class _Flight(Generic[K]):
    """One production or reload, and who waits for it until when."""

    waiters: dict[Hashable, float] = field(default_factory=dict)


class Expander(Generic[K]):
    """One flight per key, whatever comes; decides, and leaves the work to others.

    It looks at prefixes through `nbytes` and `valid_for` alone, so their kind does not matter. What it says
    must be done: a flight that a decision began ends with `landed`.

    Attributes:
        steps, skipped, spills: decisions so far, by step; reloads not made, and spills, by reason.
    """

    def __init__(
        self, link: ReloadLink, returns: Returns[K], spill_min_reuse: float, spill_queue_max: int
    ) -> None:
        self._link, self._returns = link, returns
        self._min_reuse, self._queue_max = spill_min_reuse, spill_queue_max
        self._flights: dict[K, _Flight[K]] = {}
        self.steps = dict.fromkeys(Step, 0)
        self.skipped = dict.fromkeys((Why.LATE, Why.SLOWER, Why.FAILED), 0)
        self.spills = dict.fromkeys(Spill, 0)

    def __len__(self) -> int:
        return len(self._flights)

    def prepare(
        self,
        key: K,
        ref: Ref,
        device: Prefix | None,
        host: Prefix | None,
        waiter: Hashable,
        now_s: float,
        deadline_s: float,
        recompute_s: float,
        appendable: bool,
    ) -> Decision:
        """The cheapest way to have all of `ref` on the device; `waiter` waits for it until its deadline.

        Args:
            device, host: what the tiers have of the user, whether it fits `ref` or not.
            recompute_s: time to compute what a reload would bring.
            appendable: a part of a prefix may be extended instead of computed anew.
        """
        ready = _valid(device, ref)
        if ready == ref.tokens:
            return self._count(Decision(Step.HOLD, Why.READY, ready))
        flight = self._flights.get(key)
        if flight is not None:
            flight.waiters[waiter] = deadline_s
            return self._count(Decision(Step.JOIN, Why.IN_FLIGHT, ready))
        self._flights[key] = _Flight({waiter: deadline_s})
        stored = _valid(host, ref)
        if host is None or stored <= ready or not (appendable or stored == ref.tokens):
            return self._compute(ready, Why.NOT_ON_HOST, appendable)
        turn = self._link.offer(key, host.nbytes, now_s, deadline_s, recompute_s).turn
        if turn == Turn.QUEUED:
            return self._count(Decision(Step.RELOAD, Why.ON_HOST, stored))
        return self._compute(ready, Why.LATE if turn == Turn.LATE else Why.SLOWER, appendable)

    def instead(self, key: K, ref: Ref, device: Prefix | None, why: Why, appendable: bool) -> Decision:
        """The step of a flight whose reload was given up by the link, or failed; its waiters stay.

        Raises KeyError for a key that is not in flight.
        """
        if key not in self._flights:
            raise KeyError(key)
        return self._compute(_valid(device, ref), why, appendable)

    def leave(self, key: K, waiter: Hashable) -> None:
        """Somebody waits no longer; unknown ones are no matter."""
        flight = self._flights.get(key)
        if flight is not None:
            flight.waiters.pop(waiter, None)

    def pointless(self, key: K, now_s: float) -> bool:
        """Whether a flight may end early: nobody waits whose time is not over, and no return is expected."""
        flight = self._flights.get(key)
        if flight is None or any(deadline_s > now_s for deadline_s in flight.waiters.values()):
            return False
        return self._returns.p_return(key, now_s) < self._min_reuse

    def landed(self, key: K) -> tuple[Hashable, ...]:
        """A flight is over, well or not; returns who waits to be told. A queued reload is taken back."""
        flight = self._flights.pop(key, None)
        self._link.cancel(key)
        return tuple(flight.waiters) if flight is not None else ()

    def in_flight(self, key: K) -> bool:
        return key in self._flights

    def spill(
        self, key: K, ref: Ref, host: Prefix | None, consumed: bool, queued: int, now_s: float
    ) -> Spill:
        """Whether the prefix `ref` is to be copied to the host now, with `queued` spills waiting."""
        answer = self._spill(key, ref, host, consumed, queued, now_s)
        self.spills[answer] += 1
        return answer

    def _spill(
        self, key: K, ref: Ref, host: Prefix | None, consumed: bool, queued: int, now_s: float
    ) -> Spill:
        if not consumed:
            return Spill.LIVE
        if key in self._flights:
            return Spill.IN_FLIGHT
        if _valid(host, ref) == ref.tokens:
            return Spill.ON_HOST
        if self._returns.p_return(key, now_s) < self._min_reuse:
            return Spill.UNLIKELY
        return Spill.QUEUE_FULL if queued >= self._queue_max else Spill.YES

    def _compute(self, ready: int, why: Why, appendable: bool) -> Decision:
        if why in self.skipped:
            self.skipped[why] += 1
        extend = ready > 0 and appendable
        return self._count(Decision(Step.EXTEND, why, ready) if extend else Decision(Step.COMPUTE, why, 0))

    def _count(self, decision: Decision) -> Decision:
        self.steps[decision.step] += 1
        return decision


def _valid(prefix: Prefix | None, ref: Ref) -> int:
    return prefix.valid_for(ref) if prefix is not None else 0
