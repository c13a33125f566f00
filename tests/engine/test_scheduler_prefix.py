"""Prefixes on their way: who is admitted, joins or is refused, how far a flight goes and when it ends."""

from __future__ import annotations

import time

import numpy as np
import pytest
from engine_models import REMADE, dense_logits, events, history, make_engine, profile
from scheduler_fakes import FakeEngine, at_rest, await_true, error, request, result, scheduling, user

from relaygr.core.errors import CancelledError, DeadlineError, RequestError
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import Admission, Flight, PrefixAnswer, RankJob
from relaygr.engine.requests import Path, PrefetchResult, RankRequest
from relaygr.engine.scheduler import Scheduler


def flight_of(answer: PrefixAnswer) -> Flight:
    assert answer.flight is not None
    return answer.flight


def start(scheduler: Scheduler, engine: FakeEngine, tokens: int, name: str = "p") -> Flight:
    """A flight whose first step is held."""
    engine.hold()
    flight = flight_of(scheduler.prefix(user(name, tokens)))
    engine.await_call()
    return flight


def test_admitted_then_hit() -> None:
    engine = make_engine()
    one = history("u", 150, 3)
    with scheduling(engine, chunk_tokens=40) as scheduler:
        answer = scheduler.prefix(one)
        assert (answer.admission, answer.reason, answer.tokens, answer.cached) == ("admitted", "", 150, 0)
        served = flight_of(answer).future.result(20)
        assert (served.tokens_left, served.resident) == (0, True)
        assert flight_of(answer).computed == 150
        assert flight_of(answer).steps == 5  # of 32 tokens and a rest
        assert scheduler.prefix(one) == PrefixAnswer(Admission.HIT, "", 150, 150, None)
        assert scheduler.prefix(UserHistory("nobody", [], [])).admission is Admission.HIT
        ranked = result(scheduler.rank(RankRequest(one, [1, 2])))
        assert ranked.served.path is Path.HIT
        assert np.abs(ranked.logits - dense_logits(engine, RankRequest(one, [1, 2]))).max() <= 1e-5


@pytest.mark.parametrize("name", REMADE)
def test_models_whose_prefixes_cannot_be_reused_refuse_signals(name: str) -> None:
    config = REMADE[name]
    engine = make_engine(config)
    with scheduling(engine) as scheduler:
        answer = scheduler.prefix(history("u", 50, 3, contextual=profile(config)))
        want = "not_reusable" if config.cacheable != "append" else ""
        assert (answer.reason, answer.flight is None) == (want, bool(want))


def test_a_history_that_does_not_fit_is_an_error_of_its_caller() -> None:
    with (
        scheduling(make_engine()) as scheduler,
        pytest.raises(RequestError, match="contextual"),
    ):
        scheduler.prefix(history("u", 5, 3, contextual=[1]))


def test_a_queue_full_of_flights_refuses_and_the_next_try_is_admitted() -> None:
    engine = FakeEngine()
    with scheduling(engine, prefix_queue_max=2) as scheduler:
        start(scheduler, engine, 10)
        waiting = [flight_of(scheduler.prefix(user(name, 10))) for name in ("a", "b")]
        answer = scheduler.prefix(user("c", 10))
        assert (answer.admission, answer.reason, answer.flight) == ("rejected", "queue_full", None)
        assert scheduler.prefix(user("a", 10)).admission is Admission.JOINED
        waiting[0].cancel()
        last = flight_of(scheduler.prefix(user("c", 10)))
        engine.release()
        for flight in (waiting[1], last):
            assert flight.future.result(5).resident
        await_true(lambda: at_rest(scheduler))
    assert "a" not in engine.tokens


def test_signals_are_shed_while_ranking_is_queued_beyond_a_batch() -> None:
    engine = FakeEngine()
    with scheduling(engine, rank_batch_max=2) as scheduler:
        flight = start(scheduler, engine, 10)
        ranks = [scheduler.rank(request(f"u{i}")) for i in range(2)]
        assert scheduler.prefix(user("a", 10)).admission is Admission.ADMITTED
        ranks.append(scheduler.rank(request("u2")))
        answer = scheduler.prefix(user("b", 10))
        assert (answer.admission, answer.reason) == ("rejected", "load")
        assert scheduler.prefix(user("a", 10)).admission is Admission.JOINED
        engine.release()
        for job in (*ranks, flight):
            assert error(job) is None


def test_flights_run_in_order_of_deadlines_and_the_earlier_one_is_finished_first() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=10) as scheduler:
        now = scheduler._clock.now_s()
        start(scheduler, engine, 10, "first")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler._clock, "now_s", lambda: now)
            asked = {"late": 9000, "a": 5000, "b": 5000}
            flights = [flight_of(scheduler.prefix(user(name, 20), ms)) for name, ms in asked.items()]
        engine.release()
        for flight in flights:
            flight.future.result(5)
    assert [call[1] for call in engine.calls] == ["first", "a", "a", "b", "b", "late", "late"]


def test_a_longer_history_extends_the_flight_whatever_step_it_is_in() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=10) as scheduler:
        flight = start(scheduler, engine, 10)  # in its last step
        longer = scheduler.prefix(user("p", 35))
        assert (longer.admission, longer.flight) == (Admission.JOINED, flight)
        assert scheduler.prefix(user("p", 20)).flight is flight  # an older one does not shorten it
        engine.release()
        served = flight.future.result(5)
        assert (served.tokens_cached + served.tokens_computed, served.tokens_left) == (35, 0)
        assert engine.tokens["p"] == 35
        assert flight.computed == 35
        assert scheduler.prefix(user("p", 35)).admission is Admission.HIT
        await_true(lambda: at_rest(scheduler))


def test_an_edited_history_of_the_same_length_is_what_the_flight_ends_with() -> None:
    engine = make_engine()
    with scheduling(engine, chunk=lambda cached, left: step(32)) as scheduler:
        edited = history("u", 90, 4)
        joined: list[PrefixAnswer] = []

        def step(tokens: int) -> int:
            if not joined:  # in the first step
                joined.append(scheduler.prefix(edited))
            return tokens

        flight_of(scheduler.prefix(history("u", 90, 3))).future.result(20)
        assert joined[0].admission is Admission.JOINED
        assert engine.peek(RankRequest(edited, ())) == (90, 90)


def test_a_signal_between_the_last_step_and_its_answer_is_a_flight_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine()
    late: list[PrefixAnswer] = []
    resolve = Flight.resolve

    def resolved(flight: Flight, answer: PrefetchResult) -> bool:
        if not late:
            late.append(scheduler.prefix(user("p", 40)))
        return resolve(flight, answer)

    with scheduling(engine) as scheduler:
        monkeypatch.setattr(Flight, "resolve", resolved)
        flight_of(scheduler.prefix(user("p", 20))).future.result(5)
        assert late[0].admission is Admission.ADMITTED
        assert flight_of(late[0]).future.result(5).tokens_left == 0
        assert engine.tokens["p"] == 40


def test_no_signal_is_lost_at_the_end_of_a_flight() -> None:
    """Signals of a growing history race with the ends of flights: the last of them is always encoded."""
    engine = make_engine()
    items, times, actions = events(150, 4)
    with scheduling(engine, chunk_tokens=32) as scheduler:
        for turn in range(20):
            name, last = f"u{turn}", None
            for count in range(90, 150, 6):
                answer = scheduler.prefix(UserHistory(name, items[:count], times[:count], actions[:count]))
                last = answer.flight or last
                time.sleep(0.0003 * (turn % 7))
            assert last is not None
            last.future.result(20)
            await_true(lambda: at_rest(scheduler))
            whole = UserHistory(name, items[:144], times[:144], actions[:144])
            assert engine.peek(RankRequest(whole, ())) == (144, 144)


def test_a_flight_lives_until_the_latest_deadline_of_its_signals() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=10) as scheduler:
        flight = start(scheduler, engine, 50)
        short = flight_of(scheduler.prefix(user("q", 50), 300))
        joined = flight_of(scheduler.prefix(user("r", 50), 300))
        assert scheduler.prefix(user("r", 50), 9000).flight is joined
        assert isinstance(error(short), DeadlineError)  # while the step is still held
        assert not flight.future.done()
        assert not joined.future.done()
        engine.release()
        assert joined.future.result(5).tokens_left == 0
        assert flight.future.result(5).tokens_left == 0
        await_true(lambda: at_rest(scheduler))
    assert "q" not in engine.tokens


def test_a_flight_that_expires_between_steps_stops_and_keeps_what_is_done() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=10) as scheduler:
        engine.hold()
        flight = flight_of(scheduler.prefix(user("p", 50), 300))
        engine.await_call()
        assert isinstance(error(flight), DeadlineError)
        again = flight_of(scheduler.prefix(user("p", 50)))
        assert again is not flight
        engine.release()
        assert again.future.result(5).tokens_left == 0
    assert (flight.steps, again.steps) == (1, 4)
    assert engine.calls == [("step", "p", upto) for upto in (10, 20, 30, 40, 50)]


def test_a_cancelled_flight_stops_after_the_running_step() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=10) as scheduler:
        flight = start(scheduler, engine, 50)
        flight.future.cancel()
        engine.release()
        assert isinstance(error(flight), CancelledError)
        await_true(lambda: at_rest(scheduler))
    assert engine.calls == [("step", "p", 10)]


def test_a_flight_that_the_pool_refuses_ends() -> None:
    engine = FakeEngine()
    engine.room = 30
    with scheduling(engine, chunk_tokens=10) as scheduler:
        served = flight_of(scheduler.prefix(user("p", 60))).future.result(5)
        assert (served.resident, served.uncached_reason) == (False, "too_large")
        await_true(lambda: at_rest(scheduler))
    assert len(engine.calls) == 4


def test_users_who_evict_one_another_all_end() -> None:
    engine = make_engine()  # 25 full rows fit
    with scheduling(engine, chunk_tokens=32, prefix_queue_max=100) as scheduler:
        flights = [flight_of(scheduler.prefix(history(f"u{i}", 160, i))) for i in range(60)]
        assert all(flight.future.result(30).resident for flight in flights)
        stats = engine.cache_stats()
        assert (stats.leases, stats.pinned_pages) == (0, 0)


@pytest.mark.parametrize("chunk", [0, -7, 1])
def test_a_step_is_at_least_a_page(chunk: int) -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk=lambda cached, left: chunk) as scheduler:
        flight_of(scheduler.prefix(user("p", 30))).future.result(5)
    assert len(engine.calls) == 3


def test_the_size_of_a_step_follows_what_is_cached() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk=lambda cached, left: 10 + cached) as scheduler:
        flight_of(scheduler.prefix(user("p", 100))).future.result(5)
    assert engine.calls == [("step", "p", upto) for upto in (10, 30, 70, 100)]


def test_ranking_overtakes_a_flight_and_leaves_the_right_state() -> None:
    engine = make_engine()
    one = history("u", 150, 3)
    ranks: list[RankJob] = []

    def chunk(cached: int, left: int) -> int:
        if cached == 64:  # between two steps of the flight
            ranks.append(scheduler.rank(RankRequest(one, [1, 2, 3])))
        return 32

    with scheduling(engine, chunk=chunk) as scheduler:
        flight = flight_of(scheduler.prefix(one))
        served = flight.future.result(20)
        ranked = result(ranks[0])
        assert (ranked.served.tokens_cached, ranked.served.tokens_computed) == (96, 54)
        assert (served.tokens_computed, served.tokens_left, served.resident) == (0, 0, True)
        assert flight.computed + ranked.served.tokens_computed == 150
        want = dense_logits(engine, RankRequest(one, [1, 2, 3]))
        hit = result(scheduler.rank(RankRequest(one, [1, 2, 3])))
        assert hit.served.path is Path.HIT
        assert np.abs(ranked.logits - want).max() <= 1e-5
        assert np.abs(hit.logits - want).max() <= 1e-5
