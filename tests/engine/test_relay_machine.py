"""Signals that are lost, doubled, late or out of order, beside everything else that happens to users."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from relay_rig import FULL_BYTES, PAGE_BYTES, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S, await_true

from relaygr.core.errors import CancelledError, DeadlineError
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import Flight, RankJob

NAMES = st.sampled_from(["a", "b", "c", "d"])
SIZES = st.sampled_from([0, 1, 5, 31, 32, 33, 64, 150])
REASONS = {"", "footprint", "hot_key", "rate", "load", "queue_full"}


class RelayMachine(RuleBasedStateMachine):
    """Scores are those of a pass without any cache, and whatever came, a life later nothing is held."""

    @initialize(
        sizes=st.lists(SIZES, min_size=4, max_size=4),
        bound=st.sampled_from([1, 2, 3]),
        mode=st.sampled_from(["exclusive", "inclusive"]),
        policy=st.sampled_from(["gd_cost", "lru", "tlru"]),
    )
    def begin(self, sizes: list[int], bound: int, mode: str, policy: str) -> None:
        host = {"host_bytes": 12 * PAGE_BYTES, "clean_target": 0.3, "spill_min_reuse": 0.1}
        self.stack = ExitStack()
        self.r: Rig = self.stack.enter_context(
            rig(
                relay={"h_relay_bytes": bound * FULL_BYTES, "shadow_rate": 0.2},
                host=host | {"tier_mode": mode, "policy_host": policy},
                trigger={"key_inflight_max": 3},
                rank_batch_max=3,
                prefix_queue_max=3,
            )
        )
        self.users = {name: user(name, size) for name, size in zip("abcd", sizes, strict=True)}
        self.engines: dict[bytes, Engine] = {self.r.engine.model_fp: self.r.engine}
        self.jobs: list[tuple[RankJob, bool]] = []
        self.flights: list[Flight] = []
        self.stopped = False

    @rule(name=NAMES, times=st.integers(1, 3), older=st.booleans())
    def signal(self, name: str, times: int, older: bool) -> None:
        """Of a history that may be shorter than the newest."""
        one = self.users[name]
        one = one.newest(len(one)) if not older else _head(one, len(one) // 2)
        for _ in range(times):
            answer = self.r.signal(one)
            assert answer.reason in REASONS
            if answer.flight is not None:
                self.flights.append(answer.flight)

    @rule(name=NAMES, candidates=st.integers(0, 9), cancelled=st.booleans())
    def rank(self, name: str, candidates: int, cancelled: bool) -> None:
        job = self.r.ask(self.users[name], range(candidates))
        if cancelled:
            job.cancel()
        self.jobs.append((job, cancelled))

    @rule(name=NAMES, count=SIZES, seed=st.integers(0, 99))
    def append(self, name: str, count: int, seed: int) -> None:
        self.users[name] = (
            longer(self.users[name], count, seed) if len(self.users[name]) else user(name, count)
        )

    @rule(name=NAMES, place=st.integers(0, 160))
    def change(self, name: str, place: int) -> None:
        """A late event: what lies behind it is another prefix."""
        one = self.users[name]
        items = np.insert(one.items, min(place, len(one)), 7)
        times = np.insert(one.timestamps, min(place, len(one)), 0)
        times[: min(place, len(one)) + 1].sort()
        actions = np.insert(one.actions, min(place, len(one)), 1)
        self.users[name] = UserHistory(name, items, np.sort(times), actions)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        thread = threading.Thread(target=self.r.scheduler.forget, args=("default", name))
        thread.start()
        self.go()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        self.jobs = [(job, cancelled or job.owner[1] == name) for job, cancelled in self.jobs]

    @rule()
    def swap(self) -> None:
        if len(self.engines) < 4:
            engine = self.r.swap(len(self.engines))
            self.engines[engine.model_fp] = engine

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.29, 0.31, 11.0]))
    def advance(self, seconds: float) -> None:
        self.r.advance(seconds)
        if seconds > 10:  # longer than the deadline of whatever waits
            self.jobs = [(job, True) for job, _ in self.jobs]

    @rule()
    def stop(self) -> None:
        """The executor stops at its next step."""
        if not self.stopped:
            self.r.brake.stop()
            self.stopped = True

    @rule()
    def go(self) -> None:
        self.r.brake.release()
        self.stopped = False

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if self.flights:
            self.flights[which % len(self.flights)].cancel()

    @rule()
    def pressure(self) -> None:
        """Another user takes the whole device, if that is free."""
        self.go()
        self.r.ask(user("other", 159), (1,)).future.result(PATIENCE_S)

    @rule()
    def damage(self) -> None:
        """Nothing in host memory is what was stored."""
        self.go()
        self.r.rest()
        carrier = self.r.engine._tiers._carrier
        assert carrier is not None
        carrier._mover.host.keys.add_(1.0)

    @invariant()
    def what_is_held_is_there(self) -> None:
        if hasattr(self, "r") and not self.stopped:
            self.r.rest()
            self.r.held_is_there()
            self.r.engine._tiers.books.audit()

    def teardown(self) -> None:
        if not hasattr(self, "r"):
            return
        self.go()
        await_true(lambda: all(job.done() for job, _ in self.jobs))
        self.stack.close()
        for job, lost in self.jobs:
            error = job.exception(0)
            if error is None:
                answer = job.result(0)
                self.r.right(job, answer, self.engines[answer.served.model])
            else:
                assert lost
                assert isinstance(error, (CancelledError, DeadlineError))
        assert max(self.r.ears.differences, default=0.0) <= 1e-5


def _head(one: UserHistory, count: int) -> UserHistory:
    kept: Any = slice(count)
    return UserHistory(one.user, one.items[kept], one.timestamps[kept], one.actions[kept])


QUICK = settings(
    max_examples=10,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_r24_r25_r4_random_schedules() -> None:
    run_state_machine_as_test(RelayMachine, settings=QUICK)


@pytest.mark.slow
def test_r24_r25_r4_many_random_schedules() -> None:
    run_state_machine_as_test(
        RelayMachine, settings=settings(QUICK, max_examples=300, stateful_step_count=80)
    )
