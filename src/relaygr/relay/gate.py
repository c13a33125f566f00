"""Memory, rate and load of an instance: tests that reserve, in one step that is done whole or not at all."""

from __future__ import annotations

import math
from typing import Generic

from relaygr.config.relay import TriggerConfig
from relaygr.relay.bucket import TokenBucket
from relaygr.relay.hold import K
from relaygr.relay.holds import HoldBook
from relaygr.relay.trigger import Reason


def q_rate(bound_bytes: int, prefix_bytes: float, t_life_s: float, pre_rate_per_s: float = 0.0) -> float:
    """Signals a second whose prefixes fit while each is held for its life (Little's law).

    Args:
        bound_bytes: of live prefixes.
        prefix_bytes: of a large prefix; 0 if unknown, which bounds nothing.
        t_life_s: how long a prefix is held; 0 bounds nothing.
        pre_rate_per_s: a further cap; 0 is none.
    """
    cap = pre_rate_per_s or math.inf
    if not prefix_bytes or not t_life_s:
        return cap
    return min(bound_bytes // prefix_bytes / t_life_s, cap)


def q_load(u_max: float, slots: int, rank_rate_per_s: float, t_rank_ms: float, t_pre_ms: float) -> float:
    """Signals a second that, with ranking, take `u_max` of the model slots; 0 if ranking takes that alone.

    Args:
        u_max: share of the slots' time.
        slots: passes at once.
        rank_rate_per_s, t_rank_ms: rankings a second, and the slot time of one.
        t_pre_ms: slot time of a pre-inference; 0 bounds nothing.
    """
    left_ms = u_max * slots * 1000 - rank_rate_per_s * t_rank_ms
    if left_ms <= 0:
        return 0.0
    return left_ms / t_pre_ms if t_pre_ms else math.inf


def instances_needed(at_risk_per_s: float, q_rate_per_s: float, q_load_per_s: float) -> int:
    """Instances that so many requests at risk a second need.

    Raises:
        ValueError: an instance admits nothing, and something is at risk.
    """
    if at_risk_per_s <= 0:
        return 0
    each = min(q_rate_per_s, q_load_per_s)
    if each <= 0:
        raise ValueError(f"{at_risk_per_s:g} requests a second need instances that admit some, not {each:g}")
    # A quotient that is whole but for rounding needs no further instance.
    return max(math.ceil(at_risk_per_s / each * (1 - 1e-12)), 1)


class Gate(Generic[K]):
    """Admission to one instance, after `Trigger`.

    Changes: an admitted signal leaves a reservation in the book and took a token; a refused one nothing.
    Until `rates` is called, only memory and `pre_rate_per_s` are asked for.
    """

    def __init__(self, config: TriggerConfig, holds: HoldBook[K], slots: int) -> None:
        """A gate in front of `holds`.

        Args:
            config: rates and the share of load; `admit_all` asks for no load.
            holds: memory of the instance.
            slots: passes that run at once, at least 1.
        """
        self._config = config
        self._holds = holds
        self._slots = slots
        self._q_rate = q_rate(0, 0.0, 0.0, config.pre_rate_per_s)
        self._q_load = math.inf
        self._bucket = TokenBucket(self._q_rate, config.pre_burst)
        self._t_pre_ms = 0.0
        self._taken = 0.0

    @property
    def q_rate_per_s(self) -> float:
        """What memory and the configured cap allow."""
        return self._q_rate

    @property
    def q_load_per_s(self) -> float:
        """What ranking leaves of the model slots."""
        return self._q_load

    def rates(
        self,
        t_pre_ms: float,
        rank_rate_per_s: float,
        t_rank_ms: float,
        t_life_s: float,
        b_p99_bytes: float,
        now_s: float,
    ) -> None:
        """What was measured lately; bounds admission from now on, see `q_rate` and `q_load`."""
        config = self._config
        self._t_pre_ms = t_pre_ms
        self._q_rate = q_rate(self._holds.limit_bytes, b_p99_bytes, t_life_s, config.pre_rate_per_s)
        if not config.admit_all:
            self._q_load = q_load(config.u_max, self._slots, rank_rate_per_s, t_rank_ms, t_pre_ms)
        self._bucket.set_rate(min(self._q_rate, self._q_load), now_s)

    def check(self, key: K, nbytes: int, now_s: float, work_ms: float | None = None) -> Reason:
        """What `admit` would say."""
        if not self._holds.fits(key, nbytes):
            return Reason.FOOTPRINT
        if not self._bucket.has(now_s, self._tokens(work_ms)):
            return Reason.RATE if self._q_rate <= self._q_load else Reason.LOAD
        return Reason.ADMITTED

    def admit(self, key: K, nbytes: int, now_s: float, work_ms: float | None = None) -> Reason:
        """ADMITTED, with a claim on `nbytes` for the key and a token less; or why not.

        Where load is the tighter bound, a prefix of which most is there takes the part of a token that its
        missing `work_ms` are of a usual pre-inference; memory is taken by each alike.
        """
        reason = self.check(key, nbytes, now_s, work_ms)
        if reason is Reason.ADMITTED:
            self._taken = self._tokens(work_ms)
            taken = self._bucket.take(now_s, self._taken) and self._holds.reserve(key, nbytes, now_s)
            assert taken, "what was checked just now was refused"
        return reason

    def refund(self) -> None:
        """The prefix of the signal that was just admitted was there already: nothing is computed for it."""
        self._bucket.refund(self._taken)

    def _tokens(self, work_ms: float | None) -> float:
        if work_ms is None or not self._t_pre_ms or self._q_rate <= self._q_load:
            return 1.0
        return min(work_ms / self._t_pre_ms, 1.0)
