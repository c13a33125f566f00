"""A small real engine with its host tier, relay, chores and scheduler, on a clock that tests move."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from engine_models import CONFIG, PAGE_TOKENS, _choose, dense_logits, history, random_model
from msgspec.structs import replace
from scheduler_fakes import PATIENCE_S, Ears, await_true

from relaygr.config.host import HostConfig
from relaygr.config.relay import RelayConfig, TriggerConfig
from relaygr.config.settings import EngineConfig, SchedulerConfig
from relaygr.core.clock import Clock, ManualClock
from relaygr.core.ids import Fingerprint
from relaygr.core.units import MIB
from relaygr.engine.chores import Chores
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import PrefixAnswer, RankJob
from relaygr.engine.laps import Served
from relaygr.engine.relay import Relay
from relaygr.engine.requests import RankRequest, RankResult
from relaygr.engine.scheduler import Scheduler
from relaygr.engine.shadow import Shadows
from relaygr.relay.hold import State
from relaygr.relay.holds import Cause
from relaygr.relay.live import LiveBytes
from relaygr.relay.trigger import Build, Verdict

# Pages of 64 KiB: the smallest pool that settings allow has 16, and three full users fill it.
SHAPE = replace(CONFIG, num_heads=4, qk_dim=32, v_dim=32)
PAGE_BYTES, FULL = 64 * 1024, 150
FULL_BYTES = -(-FULL // PAGE_TOKENS) * PAGE_BYTES
T_LIFE_S = 0.3
CANDIDATES = tuple(range(1, 9))


class Brake:
    """The size of a step, asked for at its beginning: there the executor can be stopped."""

    def __init__(self, tokens: int = PAGE_TOKENS) -> None:
        self.tokens, self.steps = tokens, 0
        self._entered = threading.Semaphore(0)
        self._permits: threading.Semaphore | None = None

    def __call__(self, cached: int, left: int) -> int:
        self.steps += 1
        permits = self._permits
        if permits is not None:
            self._entered.release()
            assert permits.acquire(timeout=PATIENCE_S)
        return self.tokens

    def stop(self) -> None:
        """The next step waits at its beginning."""
        self._permits = threading.Semaphore(0)

    def await_step(self) -> None:
        """Until a step has been stopped."""
        assert self._entered.acquire(timeout=PATIENCE_S)

    def go(self, steps: int = 1) -> None:
        assert self._permits is not None
        self._permits.release(steps)

    def release(self) -> None:
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.release(1000)


@dataclass
class RelayEars:
    """An observer of the relay and of shadow scoring that remembers."""

    verdicts: list[Verdict] = field(default_factory=list)
    ready: list[bool] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)

    def decided(self, verdict: Verdict, seconds: float) -> None:
        self.verdicts.append(verdict)

    def lead(self, seconds: float, ready: bool) -> None:
        self.ready.append(ready)

    def left(self, cause: Cause) -> None:
        self.causes.append(cause)

    def shadowed(self, difference: float, breach: bool) -> None:
        self.differences.append(difference)


class Rig:
    """Everything of an instance below HTTP.

    Attributes:
        peak_bytes: most that was live at once, whatever the moment.
        beyond: how often more was live than the bound allowed.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.clock: Clock = settings.pop("clock", None) or ManualClock()
        self.ears, self.observer, self.brake = RelayEars(), Ears(), Brake()
        self.host = HostConfig(
            **{"host_bytes": 0, "run_chunk_tokens": 32, "checksum_share": 1.0, "clean_target": 0.0}
            | settings.pop("host", {})
        )
        self.relay_config = RelayConfig(
            **{"h_relay_bytes": MIB, "shadow_rate": 0.0} | settings.pop("relay", {})
        )
        trigger = TriggerConfig(**{"pre_burst": 64} | settings.pop("trigger", {}))
        self.device_bytes = settings.pop("device_bytes", MIB)
        self.build, self.fit = settings.pop("build", {}), settings.pop("fit", None)
        self.engine = self.new_engine(0)
        self.relay = Relay(self.relay_config, trigger, self.host, self.device_bytes, self.clock, self.ears)
        self.shadows = Shadows(self.relay_config, self.relay.disable, self.ears)
        self.chores = Chores(self.host, self.shadows, self.relay.worth_spilling, self.brake)
        self.relay.serve(self.served(self.engine))
        self.peak_bytes = self.beyond = 0
        self.bound = 1e-5  # on the difference of a score, more where states are rounded
        self.scheduler = Scheduler(
            self.engine, SchedulerConfig(**settings), self.clock, self.observer, self.brake,
            self.fit, relay=self.relay, chores=self.chores,
        )  # fmt: skip

    def new_engine(self, number: int) -> Engine:
        """One of the same shape with weights and a fingerprint of its own."""
        choice = _choose("cpu", "fp32", False)
        settings = EngineConfig(page_tokens=PAGE_TOKENS, device_bytes=self.device_bytes, lease_ttl_ms=60_000)
        model = random_model(SHAPE, number).cast(choice.dtype)
        fingerprint = Fingerprint(number.to_bytes(16, "big"))
        return Engine(model, fingerprint, choice, settings, self.clock, self.host)

    def served(self, engine: Engine) -> Served:
        build = Build(engine.model_fp.hex(), **self.build)
        layout = engine.layout
        host_token_bytes = engine.host_format.token_bytes(layout)
        return Served(build, layout.token_bytes, layout.page_tokens, host_token_bytes)

    def swap(self, number: int) -> Engine:
        """As a service does it."""
        self.engine = self.new_engine(number)
        self.scheduler.swap(self.engine)
        self.relay.serve(self.served(self.engine))
        return self.engine

    def signal(self, one: UserHistory, deadline_ms: float | None = None) -> PrefixAnswer:
        return self.scheduler.prefix(one, deadline_ms)

    def prepare(self, one: UserHistory) -> PrefixAnswer:
        """A signal and all that follows from it."""
        answer = self.signal(one)
        self.rest()
        return answer

    def ask(self, one: UserHistory, candidates: Any = CANDIDATES, **limits: float | None) -> RankJob:
        return self.scheduler.rank(RankRequest(one, candidates), **limits)

    def rank(self, one: UserHistory, candidates: Any = CANDIDATES) -> RankResult:
        """The answer, which must be that of a pass without any cache."""
        job = self.ask(one, candidates)
        answer = job.future.result(PATIENCE_S)
        self.right(job, answer)
        self.rest()
        return answer

    def right(self, job: RankJob, answer: RankResult, engine: Engine | None = None) -> None:
        """Whether an answer is what a pass over its whole history without any cache gives."""
        want = dense_logits(engine or self.engine, job.request)
        assert answer.logits.shape == want.shape
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        assert float(np.abs(answer.logits - want).max(initial=0)) <= self.bound * scale

    def advance(self, seconds: float) -> None:
        """Let time pass, and let whoever waits for it notice."""
        if not isinstance(self.clock, ManualClock):
            time.sleep(seconds)
            return
        self.clock.advance(seconds)
        self.scheduler._timer.fire()
        with self.scheduler._change:
            self.scheduler._change.notify_all()

    def rest(self) -> None:
        """Until nothing waits or runs, and nothing is due."""
        await_true(self._at_rest)

    def crowd(self, users: int, first: int = 0) -> None:
        """Rank so many other users, each of whom takes a third of the device."""
        for number in range(first, first + users):
            self.rank(user(f"crowd-{number}"), (1,))

    def cached(self, one: UserHistory) -> tuple[int, int]:
        """Tokens of the history that the device has, and that the host has."""
        found = self.engine.locate(RankRequest(one, ()))[1]
        return found.device, found.host

    @property
    def live(self) -> dict[str, int]:
        """Live bytes by state, those that are not 0."""
        return {state: size for state, size in self.relay.state().live_bytes if size}

    def state(self, one: UserHistory) -> State | None:
        return self.relay._holds.state((one.tenant, one.user))

    def claims(self, one: UserHistory) -> int:
        return self.relay._holds.claims((one.tenant, one.user))

    def nothing_held(self) -> None:
        """Not a byte is live, reserved, pinned or on its way."""
        relay, stats, tiers = self.relay, self.engine.cache_stats(), self.engine._tiers
        assert self.live == {}
        assert relay.state().entries == 0
        assert len(relay._expander) == relay._link.running == relay._link.waiting == 0
        assert (relay._reloading, dict(relay._to_hold), relay._to_free) == (set(), {}, set())
        assert (stats.leases, stats.pinned_pages) == (0, 0)
        assert (tiers._held, tiers._loading, tiers._spilling) == ({}, {}, None)
        if stats.host is not None:
            assert (stats.host.pinned_chunks, stats.host.moving) == (0, 0)
        tiers.books.audit()

    def held_is_there(self) -> None:
        """What is ready for a ranking is on the device, and cannot be evicted; to be asked at rest."""
        for owner, hold in self.relay._holds._holds.items():
            if hold.state is State.READY:
                assert self.engine._tiers._held[owner].live  # type: ignore[index]

    def finish(self) -> None:
        """A life after the last request nothing is held."""
        self.brake.release()
        self.rest()
        self.advance(T_LIFE_S + 0.001)
        self.rest()
        self.nothing_held()

    def _at_rest(self) -> bool:
        load, end_s = self.scheduler.load(), self.relay.next_end_s()
        if load.ranks or load.flights or load.busy or self.chores.due(self.engine):
            return False
        return end_s is None or end_s > self.clock.now_s()


@contextlib.contextmanager
def rig(**settings: Any) -> Iterator[Rig]:
    """Live bytes never exceed their bound in it, and afterwards nothing is held."""
    found = Rig(settings)
    before = LiveBytes.resize

    def resize(live: LiveBytes, state: State, growth_bytes: int) -> None:
        before(live, state, growth_bytes)
        found.peak_bytes = max(found.peak_bytes, live.total)
        found.beyond += live.total > live.bound

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveBytes, "resize", resize)
        try:
            yield found
            found.finish()
            assert found.beyond == 0
        finally:
            found.brake.release()
            found.scheduler.close()


def user(name: str, events: int = FULL, seed: int | None = None) -> UserHistory:
    return history(name, events, sum(name.encode()) if seed is None else seed)


def longer(one: UserHistory, events: int, seed: int = 5) -> UserHistory:
    """With so many newer events behind it."""
    more = history(one.user, events, seed)
    later = more.timestamps - more.timestamps[0] + one.timestamps[-1] if events else more.timestamps
    return one.append(more.items, later, more.actions)
