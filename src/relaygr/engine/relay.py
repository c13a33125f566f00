"""The relay of one instance: which signals are admitted, what is held for whom, what measured times say."""

from __future__ import annotations

import threading
from collections import OrderedDict

from relaygr.config.host import HostConfig
from relaygr.config.relay import RelayConfig, TriggerConfig
from relaygr.core.clock import Clock
from relaygr.core.state import Ref
from relaygr.engine.bound import Bound
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import RankJob
from relaygr.engine.laps import Lap, Owner, RelayObserver, RelayState, Served
from relaygr.engine.learnt import Learnt
from relaygr.engine.signals import Signal, Signals
from relaygr.engine.tiers import Readable
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.relay.expander import Decision, Expander, Spill, Step
from relaygr.relay.gate import Gate
from relaygr.relay.holds import Cause, HoldBook, Left, State
from relaygr.relay.link import ReloadLink
from relaygr.relay.returns import Returns
from relaygr.relay.trigger import Meta, Reason, Trigger, Verdict
from relaygr.relay.trigger import Owner as Instance

_SIZES = 1000
_RATES_EVERY_S = 0.05
_LINK_BYTES_PER_S = 2e9  # until copies were measured
_LEASE_LIVES = 4.0  # a lease that outlives its hold by so much was forgotten


class Relay:
    """Trigger, gate and holds of an instance, behind one lock; every method may be called from any thread,
    those that take an engine from the executor's only.
    """

    def __init__(
        self,
        config: RelayConfig,
        trigger: TriggerConfig,
        host: HostConfig,
        device_bytes: int,
        clock: Clock,
        observer: RelayObserver | None = None,
    ) -> None:
        self.config, self.host = config, host
        self._trigger_config, self._clock, self._observer = trigger, clock, observer
        self._bound = Bound(config, device_bytes)
        self._slots = trigger.model_slots or 1
        self._lock = threading.Lock()
        self._trigger = Trigger(trigger, config.enabled)
        self._served: Served | None = None
        self._budgets = FIXED_BUDGETS
        self._learnt = Learnt(trigger, self._slots)
        self._returns: Returns[Owner] = Returns(host.d_ttl_s)
        self._link_bytes_per_s = _LINK_BYTES_PER_S
        self._open()
        self._disabled: set[str] = set()

    def _open(self) -> None:
        """Nothing is held, nothing is on its way, nothing was measured but the link."""
        host = self.host
        self._since_s = self._clock.now_s()
        self._learnt.begin(self._budgets)
        self._link = ReloadLink(host.reload_slots, self._link_bytes_per_s, host.reload_bytes_per_s)
        self._expander: Expander[Owner] = Expander(
            self._link, self._returns, host.spill_min_reuse, host.spill_queue_max
        )
        self._reloading: set[Owner] = set()
        self._holds: HoldBook[Owner] = HoldBook(self._bound.nbytes, self._learnt.t_life_s)
        self._gate = Gate(self._trigger_config, self._holds, self._slots)
        self._rates_s = float("-inf")
        self._bound.open()
        self._signals = Signals(self._trigger_config.key_inflight_max)
        self._to_hold: OrderedDict[Owner, UserHistory] = OrderedDict()
        self._to_free: set[Owner] = set()

    def serve(self, served: Served) -> None:
        """Decide for this model from now on; what was held of the one before is let go."""
        with self._lock:
            self._served = served
            self._budgets = served.build.budgets or FIXED_BUDGETS
            self._open()

    def decide(
        self,
        owner: Owner,
        tokens: int,
        found: Readable,
        candidates: int | None,
        pre_wait_ms: float,
        began_s: float,
    ) -> Verdict:
        """Decide on a signal; an admitted one has claimed its prefix and its memory, and taken its token.

        Args:
            tokens: of the prefix.
            found: what the tiers have of it.
            candidates: that will be ranked; None for as many as usual.
            pre_wait_ms: until a new pre-inference would begin.
            began_s: when the signal came.
        """
        asked_s = self._clock.now_s()
        with self._lock:
            verdict = self._decide(owner, tokens, found.near, candidates, pre_wait_ms)
            now = self._clock.now_s()
            if verdict.full_p99_ms is not None or verdict.admitted:
                at_risk = verdict.reason is not Reason.NOT_AT_RISK
                self._signals.add(owner, Signal(began_s, at_risk, verdict.admitted, found))
        if self._observer is not None:
            self._observer.decided(verdict, now - asked_s)
        return verdict

    def prepare(
        self,
        history: UserHistory,
        ref: Ref,
        found: Readable,
        flying: bool,
        began_s: float,
        deadline_s: float,
    ) -> Decision:
        """How the prefix of a signal that was just admitted gets ready; what it says must be done.

        Args:
            found: what the tiers have of it.
            flying: whether the flight of an earlier signal can be joined.
            began_s: when the signal came, by which it is known from here on.
        """
        owner = history.tenant, history.user
        with self._lock:
            served = self._served
            assert served is not None, "nothing is admitted before a model is served"
            if not flying:
                self._landed(owner)  # it ended in an error just now, of which `failed` will hear
            decision = self._expander.prepare(
                owner,
                ref,
                served.stored(found.device),
                served.in_host(found.host, found.device),
                began_s,
                self._clock.now_s(),
                min(deadline_s, began_s + self._holds.t_life_s),
                # What neither has is computed either way, and counts for neither.
                served.recompute_s(found.near, found.device),
                appendable=True,
            )
            if decision.step in (Step.HOLD, Step.JOIN):
                self._gate.refund()
            if decision.step is Step.HOLD:
                self._to_hold[owner] = history
        return decision

    def withdraw(self, owner: Owner) -> None:
        """The signal that was just admitted found no place in the queue."""
        with self._lock:
            self._gate.refund()
            self._expander.landed(owner)
            self._signals.withdraw(owner)
            self._gone(self._holds.release(owner, self._clock.now_s()))

    def may_reload(self, owner: Owner) -> bool:
        """Whether the copies of a reload may begin or go on; if not, the prefix is to be computed."""
        with self._lock:
            if owner in self._reloading:
                return True
            begun, _ = self._link.next(self._clock.now_s())
            if begun is not None:
                self._reloading.add(begun.key)  # type: ignore[arg-type]
            if owner in self._reloading:
                self._holds.reload(owner)
                return True
            self._link.cancel(owner)
            return False

    def reloaded(self, owner: Owner, nbytes: int, spent_s: float) -> None:
        """A reload is over, well or not, after copying so much in so long; 0 bytes if others copied some."""
        with self._lock:
            self._reloading.discard(owner)
            self._link.done(owner, self._clock.now_s())
            self._link.measure(nbytes, spent_s)
            self._link_bytes_per_s = self._link.measured_bytes_per_s

    def stepped(self, owner: Owner, engine: Engine, history: UserHistory) -> None:
        """A part of the prefix is on the device: it stays there until it is complete."""
        with self._lock:
            self._holds.produce(owner)
            wanted = self._holds.state(owner) is not None
        if wanted:
            self._keep(engine, history)

    def landed(
        self, owner: Owner, engine: Engine, history: UserHistory, complete: bool, spent_s: float
    ) -> None:
        """A production is over; `complete` if the whole prefix is on the device."""
        now = self._clock.now_s()
        held = complete and self._keep(engine, history)
        with self._lock:
            if spent_s:
                self._learnt.computed(spent_s, now)
            self._expander.landed(owner)
            self._held(owner, held, now)

    def failed(self, owner: Owner) -> None:
        """A production ended without a prefix: cancelled, late, or an error."""
        with self._lock:
            self._landed(owner)
            self._gone(self._holds.cancel(owner))

    def _landed(self, owner: Owner) -> None:
        """No flight of the user goes on; called with the lock held."""
        self._expander.landed(owner)
        self._reloading.discard(owner)
        self._link.done(owner, self._clock.now_s())

    def wanted(self, owner: Owner) -> bool:
        """Whether computing more of the prefix is still worth it: somebody will rank, or come back."""
        with self._lock:
            return not self._expander.pointless(owner, self._clock.now_s())

    def arrived(self, owner: Owner, candidates: int) -> Signal | None:
        """A ranking was queued; returns the signal that announced it, None if none did."""
        now = self._clock.now_s()
        with self._lock:
            self._learnt.arrived(candidates, now)
            self._returns.visit(owner, now)
            signal = None
            for signal in self._signals.take(owner, now - self._holds.t_life_s):
                self._expander.leave(owner, signal.at_s)
            ready = self._holds.state(owner) in (State.READY, State.PINNED) or owner in self._to_hold
            if signal is None:
                return None
            self._learnt.announced(signal, ready, now)
        if self._observer is not None:
            self._observer.lead(now - signal.at_s, ready)
        return signal

    def enter(self, job: RankJob) -> Lap:
        """A ranking begins: what is ready of its prefix stays until `leave`."""
        now, owner = self._clock.now_s(), job.owner
        with self._lock:
            if job.entered or not self._claimed(job):
                self._holds.claim(owner, now)  # else it would take that of another request
            job.entered = True
            generation = self._holds.generation(owner)
            pinned = self._holds.pin(owner)
            if self._holds.came_late(owner, now) and self._observer is not None:
                self._observer.left(Cause.EXPIRED_UNCONSUMED)
            return Lap(owner, self._holds, generation, pinned, now)

    def leave(self, lap: Lap, spent_s: float, job: RankJob) -> None:
        """A ranking is over; `spent_s` is its share of the time of its batch."""
        now = self._clock.now_s()
        with self._lock:
            self._learnt.ranked(spent_s, now)
            if job.signal is not None:
                build = self._served.build if self._served is not None else None
                self._learnt.judge(job, job.signal, build, now)
            book = lap.book
            ended = book.unpin if lap.pinned else book.release
            if lap.generation is not None:
                left = ended(lap.owner, now, lap.generation)
                if book is self._holds:
                    self._gone(left)

    def gave_up(self, job: RankJob) -> None:
        """A ranking ended in an error; if it had not begun, its claim on the prefix is given back."""
        with self._lock:
            if not job.entered and self._claimed(job):
                self._gone(self._holds.release(job.owner, self._clock.now_s()))
            job.entered = True

    def _claimed(self, job: RankJob) -> bool:
        """Whether a signal of this ranking has a claim in the present book."""
        return job.signal is not None and job.signal.admitted and job.signal.at_s >= self._since_s

    def settle(self, engine: Engine) -> None:
        """Hold what signals found on the device, and let go of what is live no longer."""
        now = self._clock.now_s()
        with self._lock:
            to_hold, self._to_hold = self._to_hold, OrderedDict()
        if self._bound.is_adaptive:
            missed = engine.missed()
            with self._lock:
                self._bound.missed(missed, self._served, self._link)
        for owner, history in to_hold.items():
            held = self._keep(engine, history)
            with self._lock:
                self._held(owner, held, now)
        with self._lock:
            for left in self._holds.expire(now):
                self._gone(left)
            free, self._to_free = self._to_free, set()
            free = {owner for owner in free if self._holds.state(owner) is None}
        for owner in free:
            engine.let_go(*owner)

    def next_end_s(self) -> float | None:
        """When `settle` is due again; None if nothing is held."""
        with self._lock:
            if self._to_hold or self._to_free:
                return self._clock.now_s()
            return self._holds.next_end_s()

    def worth_spilling(self, ref: Ref) -> bool:
        """Whether a state that is on the device only is worth a place in host memory."""
        owner: Owner = ref.tenant, ref.user
        now = self._clock.now_s()
        with self._lock:
            consumed = self._holds.state(owner) is None
            return self._expander.spill(owner, ref, None, consumed, 0, now) is Spill.YES

    def forget(self, owner: Owner) -> None:
        """The user is deleted: nothing of the user counts any more."""
        with self._lock:
            self._to_hold.pop(owner, None)
            self._signals.forget(owner)
            self._returns.forget(owner)
            self._gone(self._holds.forget(owner))

    def disable(self, build: str) -> None:
        """Serve this build without the relay from now on."""
        with self._lock:
            self._disabled.add(build)

    def no_room(self) -> None:
        """The device had no room for a prefix that was admitted: admit less for a while."""
        with self._lock:
            self._bound.no_room(self._holds, self._clock.now_s())

    def state(self) -> RelayState:
        now = self._clock.now_s()
        with self._lock:
            return RelayState(
                live_bytes=tuple((state.value, size) for state, size in self._holds.by_state().items()),
                bound_bytes=self._holds.bound_bytes,
                entries=len(self._holds),
                q_rate_per_s=self._gate.q_rate_per_s,
                q_load_per_s=self._gate.q_load_per_s,
                lead_ms=self._learnt.lead_ms,
                t_life_ms=self._holds.t_life_s * 1000,
                rank_share=self._learnt.rank_share(now),
                ready_ratio=self._learnt.ready_ratio,
                return_ratio=self._returns.p0(now),
                steps=tuple((step.value, count) for step, count in self._expander.steps.items()),
                reloads_skipped=tuple((why.value, n) for why, n in self._expander.skipped.items()),
                precision=self._learnt.risk.precision,
                recall=self._learnt.risk.recall,
                enabled=self._enabled(),
            )

    def _decide(
        self, owner: Owner, tokens: int, cached: int, candidates: int | None, pre_wait_ms: float
    ) -> Verdict:
        served, now = self._served, self._clock.now_s()
        if served is None:
            return Verdict(Reason.METADATA)
        build = served.build
        if not self._enabled():
            return Verdict(Reason.DISABLED)
        if candidates is None:
            candidates = self._learnt.candidates
        self._refresh(now)
        instance = Instance(
            active=True,
            pre_wait_ms=pre_wait_ms,
            rank_share=min(self._learnt.rank_share(now), 1.0),
            rank_rate_per_s=self._learnt.rank_rate_per_s(now),
            key_inflight=self._holds.claims(owner),
        )
        meta = Meta("", build.name, tokens, 0, candidates, cached_tokens=cached)
        verdict = self._trigger.decide(meta, build, instance, self._learnt.lead_ms, float("inf"))
        if not verdict.admitted:
            return verdict
        nbytes = served.prefix_bytes(tokens)
        self._learnt.wanted(nbytes)
        verdict = verdict.but(self._gate.admit(owner, nbytes, now, verdict.pre_ms))
        if verdict.reason is Reason.FOOTPRINT:
            self._bound.refused(nbytes, verdict.pre_ms or 0.0)
        return verdict

    def _enabled(self) -> bool:
        build = self._served.build if self._served is not None else None
        return (
            self.config.enabled and build is not None and build.enabled and build.name not in self._disabled
        )

    def _refresh(self, now: float) -> None:
        if now - self._rates_s < _RATES_EVERY_S:
            return
        self._rates_s = now
        self._holds.t_life_s = self._learnt.t_life_s
        self._bound.refresh(self._holds, now)
        self._learnt.tell(self._gate, now)

    def _keep(self, engine: Engine, history: UserHistory) -> bool:
        return engine.hold(history, _LEASE_LIVES * self._holds.t_life_s) > 0

    def _held(self, owner: Owner, held: bool, now: float) -> None:
        """The device keeps all of a prefix for the user, or could not; called with the lock held."""
        if not held or not self._holds.ready(owner, now):
            self._gone(self._holds.cancel(owner))
            self._to_free.add(owner)  # it may be kept for nobody: its rankings are over, or its time is

    def _gone(self, left: Left[Owner] | None) -> None:
        """Called with the lock held."""
        if left is None:
            return
        self._to_free.add(left.key)
        if self._observer is not None:
            self._observer.left(left.cause)
