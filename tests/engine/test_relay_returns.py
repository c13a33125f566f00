"""What was reserved for a signal is given back whatever becomes of it."""

from __future__ import annotations

import pytest
from relay_rig import FULL, FULL_BYTES, T_LIFE_S, Rig, rig, user
from scheduler_fakes import PATIENCE_S, await_true

from relaygr.core.errors import BackendError, CancelledError, DeadlineError, RelayError
from relaygr.engine.jobs import Admission, Flight, PrefixAnswer
from relaygr.engine.requests import Path
from relaygr.relay.hold import State
from relaygr.relay.holds import Cause

ONE = user("one")


def flight_of(answer: PrefixAnswer) -> Flight:
    assert answer.flight is not None
    return answer.flight


def stopped(r: Rig) -> Flight:
    """The flight of a signal, in the middle of its first step."""
    r.brake.stop()
    flight = flight_of(r.signal(ONE))
    r.brake.await_step()
    return flight


def nothing_live(r: Rig) -> None:
    """At once, not only when the time is over."""
    r.brake.release()
    r.rest()
    r.nothing_held()


def test_r9_a_full_queue_changes_nothing() -> None:
    with rig(prefix_queue_max=1, trigger={"pre_rate_per_s": 1e6}) as r:
        stopped(r)
        queued = r.signal(user("two"))
        tokens, live = r.relay._gate._bucket._level, r.live
        answer = r.signal(user("three"))
        assert (queued.admission, answer.reason) == (Admission.ADMITTED, "queue_full")
        assert (r.relay._gate._bucket._level, r.live) == (tokens, live)
        r.brake.release()
        r.rank(user("three"))
        assert r.ears.ready == [False]
        assert r.relay.state().ready_ratio is None  # it was not admitted


def test_r9_shedding_changes_nothing() -> None:
    with rig(rank_batch_max=1, trigger={"pre_rate_per_s": 1e6}) as r:
        stopped(r)
        jobs = [r.ask(user(f"u{number}", 5)) for number in range(2)]
        tokens, live = r.relay._gate._bucket._level, r.live
        assert r.signal(user("three")).reason == "load"
        assert (r.relay._gate._bucket._level, r.live) == (tokens, live)
        r.brake.release()
        for job in jobs:
            r.right(job, job.future.result(PATIENCE_S))


@pytest.mark.parametrize("way", ["cancel", "deadline", "error"])
def test_a_flight_that_ends_early_gives_everything_back(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: type[RelayError]
    with rig() as r:
        flight = stopped(r)
        r.brake.go()
        r.brake.await_step()  # a first part is kept
        assert (r.state(ONE), r.engine.cache_stats().leases) == (State.PRODUCING, 1)
        if way == "cancel":
            wanted = CancelledError
            flight.cancel()
        elif way == "deadline":
            wanted = DeadlineError
            r.advance(11.0)
        else:
            wanted = BackendError
            monkeypatch.setattr(r.engine, "prefetch_chunk", fails)
        nothing_live(r)
        assert isinstance(flight.exception(PATIENCE_S), wanted)
        monkeypatch.undo()
        assert r.rank(ONE).served.path in (Path.RESUMED, Path.FULL)
        assert r.prepare(ONE).admission is Admission.HIT


def fails(*_: object) -> None:
    raise RuntimeError("broken")


def test_a_pool_without_room_ends_the_flight() -> None:
    with rig(relay={"h_relay_bytes": 1 << 20}) as r:
        for number in range(3):
            r.prepare(user(f"u{number}"))
        answer = r.prepare(ONE)  # fits the bound by a page of the pool that is not there
        assert answer.reason == "footprint"
        r.relay._bound.propose(r.relay._holds, 1 << 30)
        flight = flight_of(r.prepare(ONE))
        assert not flight.result(0).resident
        assert (r.state(ONE), r.ears.causes) == (None, [Cause.CANCELLED])
        assert r.live == {"ready": 3 * FULL_BYTES}
        assert r.rank(ONE).served.path is Path.FULL  # ranking is not affected
        # Less is admitted until there was room for a while.
        assert r.relay._holds.limit_bytes == int(0.9 * (1 << 30))
        r.clock.advance(5.0)
        r.signal(user("other"))
        assert r.relay._holds.limit_bytes == 1 << 30


def test_rank_before_pre_infer_makes_the_queued_one_a_no_op() -> None:
    with rig() as r:
        stopped_flight = stopped(r)
        flight = flight_of(r.signal(user("two")))
        job = r.ask(user("two"))  # overtakes
        r.brake.go()
        r.right(job, job.future.result(PATIENCE_S))
        assert r.state(user("two")) is None  # the claim was used
        r.brake.release()
        assert flight.result(PATIENCE_S).tokens_computed == flight.computed == 0
        assert stopped_flight.result(PATIENCE_S).resident
        r.rest()
        # Nobody will rank it: it is plain cache, although it came after its ranking.
        assert r.live == {"ready": FULL_BYTES}
        assert r.engine.cache_stats().leases == 1
        assert Cause.LATE in r.ears.causes


def test_rank_before_pre_infer_of_a_user_who_does_not_come_back_ends_the_flight() -> None:
    with rig(host={"spill_min_reuse": 1.0, "d_ttl_s": 0.01}) as r:
        r.rank(user("zero", 5))
        r.advance(1.0)  # and did not come back
        stopped(r)
        flight = flight_of(r.signal(user("two")))
        job = r.ask(user("two"))
        r.brake.go()
        job.future.result(PATIENCE_S)
        r.brake.release()
        assert isinstance(flight.exception(PATIENCE_S), CancelledError)
        r.rest()


def test_rank_while_producing_goes_on_from_what_is_done() -> None:
    with rig() as r:
        flight = stopped(r)
        r.brake.go()
        r.brake.await_step()
        job = r.ask(ONE)
        r.brake.go()
        answer = job.future.result(PATIENCE_S)
        r.right(job, answer)
        assert (answer.served.path, answer.served.tokens_cached) == (Path.RESUMED, 64)
        r.brake.release()
        assert flight.result(PATIENCE_S).tokens_left == 0
        assert flight.computed == 64
        nothing_live(r)
        assert r.ears.ready == [False]


@pytest.mark.parametrize("way", ["cancel", "deadline"])
def test_a_ranking_that_is_given_up_while_it_waits_gives_its_claim_back(way: str) -> None:
    with rig() as r:
        r.prepare(ONE)
        r.brake.stop()
        other = flight_of(r.signal(user("two")))
        r.brake.await_step()
        job = r.ask(ONE, deadline_ms=100.0)
        if way == "cancel":
            job.cancel()
        else:
            r.advance(0.1)
        await_true(lambda: job.done() and bool(r.ears.causes))  # its callbacks may run on the timer's thread
        assert (r.state(ONE), r.ears.causes) == (None, [Cause.CANCELLED])
        other.cancel()
        nothing_live(r)


def test_a_ranking_that_is_given_up_takes_nobody_elses_claim() -> None:
    with rig() as r:
        r.prepare(ONE)
        r.brake.stop()
        other = flight_of(r.signal(user("two")))
        r.brake.await_step()
        announced, unannounced = r.ask(ONE), r.ask(ONE)
        unannounced.cancel()
        assert r.claims(ONE) == 1
        other.cancel()
        r.brake.release()
        assert announced.future.result(PATIENCE_S).served.path is Path.HIT
        r.rest()
        assert r.state(ONE) is None


def test_a_flight_that_outlives_its_hold_leaves_nothing_behind() -> None:
    with rig() as r:
        stopped(r)
        flight = flight_of(r.signal(user("two")))
        r.advance(T_LIFE_S + 0.1)  # still queued: its reservation ends before it begins
        r.brake.release()
        assert flight.result(PATIENCE_S).resident
        r.rest()
        r.nothing_held()
        assert r.cached(user("two")) == (FULL, 0)


def test_a_flight_that_fails_takes_nothing_from_its_successor() -> None:
    with rig() as r:
        first = stopped(r)
        release = []

        def slow(_: object) -> None:  # the callbacks of the flight run one after another
            release.append(r.signal(ONE))

        first._done_callbacks.insert(0, slow)  # type: ignore[attr-defined]
        first.cancel()
        [second] = release
        assert second.admission is Admission.ADMITTED
        r.brake.release()
        flight_of(second).result(PATIENCE_S)
        r.rest()
        assert r.state(ONE) is State.READY
        r.crowd(6)
        assert r.rank(ONE).served.path is Path.HIT


def test_whatever_breaks_in_a_turn_the_executor_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig() as r:
        monkeypatch.setattr(r.relay, "enter", fails)
        assert isinstance(r.ask(ONE).future.exception(PATIENCE_S), BackendError)
        monkeypatch.undo()
        monkeypatch.setattr(r.relay, "wanted", fails)
        assert isinstance(flight_of(r.signal(ONE)).exception(PATIENCE_S), BackendError)
        monkeypatch.undo()
        assert r.rank(ONE).served.path is Path.FULL
