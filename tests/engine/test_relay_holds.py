"""Prefixes that were signalled stay on the device until they are ranked or their time is over."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from relay_rig import FULL, FULL_BYTES, T_LIFE_S, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S

from relaygr.core.clock import MonotonicClock
from relaygr.core.errors import CancelledError
from relaygr.engine.jobs import Admission, RankJob
from relaygr.engine.requests import Path
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.relay.hold import State
from relaygr.relay.holds import Cause

ONE = user("one")


def test_r3_what_is_ready_is_not_evicted_before_it_is_ranked() -> None:
    with rig() as r:
        assert r.prepare(ONE).admission is Admission.ADMITTED
        assert (r.state(ONE), r.live) == (State.READY, {"ready": FULL_BYTES})
        r.advance(T_LIFE_S - 0.001)
        r.crowd(8)
        assert r.cached(ONE) == (FULL, 0)
        answer = r.rank(ONE)
        assert (answer.served.path, answer.served.tokens_computed) == (Path.HIT, 0)
        assert (r.state(ONE), r.ears.causes) == (None, [Cause.CONSUMED])
        assert r.ears.ready == [True]


def test_what_was_ranked_is_plain_cache() -> None:
    with rig() as r:
        r.prepare(ONE)
        r.rank(ONE)
        assert (r.live, r.cached(ONE)) == ({}, (FULL, 0))
        assert r.engine.cache_stats().pinned_pages == 0
        r.crowd(4)
        assert r.cached(ONE) == (0, 0)


def test_r25_nobody_ranks_and_a_life_later_nothing_is_held() -> None:
    with rig() as r:
        for name in ("a", "b", "c"):
            r.prepare(user(name))
        assert r.live == {"ready": 3 * FULL_BYTES}
        assert r.engine.cache_stats().leases == 3
        r.advance(T_LIFE_S)
        r.rest()
        r.nothing_held()
        assert r.ears.causes == [Cause.ORPHAN] * 3
        assert r.cached(user("a")) == (FULL, 0)  # until somebody needs the room
        r.crowd(4)
        assert r.cached(user("a")) == (0, 0)


def test_a_ranking_after_the_end_is_a_miss_that_is_counted() -> None:
    with rig() as r:
        r.prepare(ONE)
        r.advance(T_LIFE_S)
        r.rest()
        r.crowd(4)
        assert r.rank(ONE).served.path is Path.FULL
        assert r.ears.causes == [Cause.ORPHAN, Cause.EXPIRED_UNCONSUMED]


def test_r4_live_bytes_never_exceed_their_bound() -> None:
    with rig(relay={"h_relay_bytes": 2 * FULL_BYTES}) as r:
        answers = [r.prepare(user(f"u{number}")) for number in range(3)]
        assert [answer.reason for answer in answers] == ["", "", "footprint"]
        assert r.live == {"ready": 2 * FULL_BYTES}
        r.rank(user("u0"))
        assert r.prepare(user("u2")).admission is Admission.ADMITTED
        assert r.peak_bytes == 2 * FULL_BYTES


def test_r4_a_longer_prefix_takes_what_it_lacks_or_nothing() -> None:
    with rig(relay={"h_relay_bytes": FULL_BYTES}) as r:
        short, long = user("one", 30), longer(user("one", 30), 120)
        r.prepare(short)
        assert r.live == {"ready": FULL_BYTES // 5}
        r.prepare(long)
        assert r.live == {"ready": FULL_BYTES}
        assert r.signal(user("two", 1)).reason == "footprint"
        assert (r.claims(long), r.cached(long)) == (2, (150, 0))


@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_for_what_is_there_holds_it(busy: bool) -> None:
    with rig() as r:
        r.rank(ONE)
        assert r.signal(ONE).admission is Admission.HIT
        if not busy:
            r.rest()
            assert (r.state(ONE), r.engine.cache_stats().leases) == (State.READY, 1)
        r.crowd(8)
        assert (r.state(ONE), r.rank(ONE).served.path) == (State.READY, Path.HIT)
        assert r.ears.ready == [True]


def test_a_hit_that_nobody_ranks_is_let_go_of_on_an_idle_instance() -> None:
    with rig() as r:
        r.rank(ONE)
        r.rest()
        r.signal(ONE)
        r.rest()
        assert r.live == {"ready": FULL_BYTES}
        r.advance(T_LIFE_S)
        r.rest()
        r.nothing_held()


def test_every_signal_is_a_claim_that_a_ranking_takes() -> None:
    with rig() as r:
        r.brake.stop()
        first = r.signal(ONE)
        r.brake.await_step()
        second = r.signal(ONE)
        assert (first.admission, second.admission) == (Admission.ADMITTED, Admission.JOINED)
        assert (first.flight, r.claims(ONE)) == (second.flight, 2)
        r.brake.release()
        r.rest()
        r.rank(ONE)
        assert (r.state(ONE), r.claims(ONE)) == (State.READY, 1)
        r.crowd(8)
        assert r.rank(ONE).served.path is Path.HIT
        assert r.state(ONE) is None
        assert r.ears.ready == [True, True]


def test_a_ranking_without_a_signal_takes_nobodys_claim() -> None:
    with rig() as r:
        r.prepare(ONE)
        r.rank(ONE)
        r.prepare(ONE)
        assert r.claims(ONE) == 1
        r.rank(ONE)
        r.rank(ONE)  # nobody announced it
        assert r.state(ONE) is None


def test_leads_are_those_of_their_own_signals() -> None:
    with rig() as r:
        r.prepare(ONE)
        r.advance(0.1)
        r.prepare(ONE)
        r.advance(0.05)
        r.rank(ONE)
        r.advance(0.02)
        r.rank(ONE)
        window = r.relay._learnt._leads._window
        assert [round(ms) for ms in window._recent] == [150, 70]


def test_a_lost_ranking_does_not_shift_the_leads_of_those_after_it() -> None:
    with rig() as r:
        r.prepare(ONE)  # never ranked
        r.advance(T_LIFE_S + 0.1)
        r.prepare(ONE)
        r.advance(0.05)
        r.rank(ONE)
        assert [round(ms) for ms in r.relay._learnt._leads._window._recent] == [50]


def test_r40_a_lower_bound_drains_before_it_holds() -> None:
    with rig() as r:
        r.prepare(user("a"))
        r.prepare(user("b"))
        assert not r.relay._bound.propose(r.relay._holds, FULL_BYTES)
        assert r.signal(user("c", 1)).reason == "footprint"
        assert r.live == {"ready": 2 * FULL_BYTES}
        assert r.rank(user("a")).served.path is Path.HIT
        assert r.relay.state().bound_bytes == FULL_BYTES
        assert r.rank(user("b")).served.path is Path.HIT
        assert r.prepare(user("c")).admission is Admission.ADMITTED


def test_a_life_that_is_measured_follows_the_requests() -> None:
    budgets = replace(FIXED_BUDGETS, t_life_ms=0.0, t_life_slack_ms=20.0)
    with rig(build={"budgets": budgets}) as r:
        assert r.relay.state().t_life_ms == 300  # as long as nothing was measured
        one = user("one", 5)
        for _ in range(101):
            r.prepare(one)
            r.advance(0.08)
            r.rank(one)
        r.prepare(one)
        assert r.relay.state().t_life_ms == pytest.approx(100)
        r.advance(0.099)
        r.rest()
        assert r.state(one) is State.READY
        r.advance(0.002)
        r.rest()
        assert r.state(one) is None


class Caller:
    """A thread's users, who are signalled, ranked, deleted and left alone."""

    def __init__(self, r: Rig, number: int) -> None:
        self.r, self.jobs = r, list[RankJob]()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self.run, args=(number,))

    def run(self, number: int) -> None:
        try:
            self.live(np.random.default_rng(number), number)
        except BaseException as failure:  # noqa: BLE001
            self.failure = failure

    def live(self, rng: np.random.Generator, number: int) -> None:
        users = [user(f"{number}-{place}", int(rng.integers(1, 60))) for place in range(4)]
        users.append(user("shared", 100))
        for _ in range(60):
            place = int(rng.integers(5))
            if rng.random() < 0.5:
                self.r.signal(users[place])
            if rng.random() < 0.7:
                self.jobs.append(self.r.ask(users[place]))
            elif place < 4:
                users[place] = longer(users[place], 3, int(rng.integers(99)))
            if rng.random() < 0.1:
                self.r.scheduler.forget("default", f"{number}-{int(rng.integers(4))}")
            if rng.random() < 0.1 and self.jobs:
                self.jobs[-1].cancel()


def test_r25_in_real_time_with_several_threads() -> None:
    with rig(clock=MonotonicClock(), host={"host_bytes": 2 << 20, "clean_target": 0.3}) as r:
        callers = [Caller(r, number) for number in range(3)]
        for caller in callers:
            caller.thread.start()
        for caller in callers:
            caller.thread.join(60)
        assert [caller.failure for caller in callers] == [None] * 3
        for job in (job for caller in callers for job in caller.jobs):
            if isinstance(job.exception(PATIENCE_S), CancelledError):
                continue
            r.right(job, job.result(0))
