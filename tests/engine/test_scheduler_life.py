"""How work ends early: deadlines, callers that leave, deleted users, new models, the end of the service."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import numpy as np
import pytest
from engine_models import history, make_engine
from scheduler_fakes import (
    PATIENCE_S,
    Ears,
    FakeEngine,
    at_rest,
    await_true,
    error,
    request,
    result,
    scheduling,
    user,
)

from relaygr.core.errors import CancelledError, DeadlineError, NotReadyError
from relaygr.engine import scheduler as module
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.requests import RankRequest
from relaygr.engine.scheduler import Scheduler


def held(scheduler: Scheduler, engine: FakeEngine, name: str = "first") -> RankJob:
    engine.hold()
    job = scheduler.rank(request(name, 5))
    engine.await_call()
    return job


def flying(scheduler: Scheduler, name: str, tokens: int = 50) -> Flight:
    flight = scheduler.prefix(user(name, tokens)).flight
    assert flight is not None
    return flight


def later(work: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args)  # type: ignore[arg-type]
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def test_a_deadline_fires_while_a_long_batch_runs_and_expired_work_is_not_computed() -> None:
    engine, ears = FakeEngine(), Ears()
    with scheduling(engine, observer=ears) as scheduler:
        engine.hold()
        running = scheduler.rank(request("running"), 400)
        engine.await_call()
        queued = scheduler.rank(request("queued"), 200)
        kept = scheduler.rank(request("kept"))
        began = time.monotonic()
        assert isinstance(error(queued), DeadlineError)
        assert isinstance(error(running), DeadlineError)
        assert time.monotonic() - began < 5  # the batch is still held
        engine.release()
        result(kept)
    assert engine.calls == [("rank", "running"), ("rank", "kept")]
    assert (len(ears.errors), ears.results) == (2, [kept])


def test_what_is_late_is_not_computed_even_if_the_timer_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    with scheduling(engine) as scheduler:
        monkeypatch.setattr(scheduler._timer, "watch", lambda job: None)
        held(scheduler, engine)
        late, flight = scheduler.rank(request("late"), 1), scheduler.prefix(user("p", 20), 1).flight
        time.sleep(0.01)
        assert late.waiting
        engine.release()
        assert isinstance(error(late), DeadlineError)
        assert flight is not None
        assert isinstance(error(flight), DeadlineError)
        await_true(lambda: at_rest(scheduler))
    assert engine.calls == [("rank", "first")]


@pytest.mark.parametrize("way", ["cancel", "future", "asyncio"])
def test_cancelling_before_and_while_running(way: str) -> None:
    engine, ears = FakeEngine(), Ears()

    def cancel(job: RankJob) -> None:
        async def through_asyncio() -> None:
            waiter = asyncio.wrap_future(job.future)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter

        if way == "asyncio":
            asyncio.run(through_asyncio())
        else:
            assert job.cancel() if way == "cancel" else job.future.cancel()

    with scheduling(engine, observer=ears) as scheduler:
        running = held(scheduler, engine)
        queued, kept = scheduler.rank(request("queued")), scheduler.rank(request("kept"))
        for job in (running, queued):
            cancel(job)
            assert isinstance(error(job), CancelledError)
        engine.release()
        result(kept)
        assert not kept.cancel()
        await_true(lambda: at_rest(scheduler))
    assert engine.calls == [("rank", "first"), ("rank", "kept")]
    assert (len(ears.errors), ears.results) == (2, [kept])


def test_a_callback_may_call_the_scheduler_again() -> None:
    engine = FakeEngine()
    chained: list[RankJob] = []
    with scheduling(engine) as scheduler:
        first = held(scheduler, engine)
        first.future.add_done_callback(lambda _: chained.append(scheduler.rank(request("next"))))
        engine.release()
        result(first)
        await_true(lambda: len(chained) == 1)
        result(chained[0])


def test_forgetting_ends_queued_and_running_work_and_leaves_nothing() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=10, rank_batch_max=2) as scheduler:
        running = held(scheduler, engine, "u")
        queued, other = scheduler.rank(request("u", 5)), scheduler.rank(request("other"))
        flights = flying(scheduler, "u"), flying(scheduler, "v")
        dropped: list[int] = []
        thread = later(lambda: dropped.append(scheduler.forget("default", "u")))
        for job in (running, queued, flights[0]):
            assert isinstance(error(job), CancelledError)
            assert "deleted" in str(error(job))
        time.sleep(0.02)
        assert not dropped  # the running batch would leave an entry behind it
        engine.release()
        assert ends(thread)
        result(other)
        assert flights[1].future.result(5).tokens_left == 0
        assert dropped == [1]
        assert "u" not in engine.tokens
        assert engine.ranked() == ["u", "other"]
        assert flying(scheduler, "u").future.result(5).tokens_left == 0  # as a new user


def test_forgetting_ends_the_flight_whose_step_runs() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=10) as scheduler:
        engine.hold()
        flight = flying(scheduler, "u")
        engine.await_call()
        thread = later(scheduler.forget, "default", "u")
        assert isinstance(error(flight), CancelledError)
        engine.release()
        assert ends(thread)
        await_true(lambda: at_rest(scheduler))
    assert engine.tokens == {}
    assert len(engine.calls) == 1


def test_forgetting_between_the_choice_of_a_batch_and_its_start() -> None:
    """The executor has taken the job, and has not come to the engine yet."""
    engine = FakeEngine()
    taken, proceed = threading.Event(), threading.Event()

    def fit(job: RankJob, remaining_ms: float) -> int:
        taken.set()
        assert proceed.wait(PATIENCE_S)
        return 1000

    with scheduling(engine, fit=fit) as scheduler:
        scheduler.rank(request("u", 5))
        assert taken.wait(PATIENCE_S)
        thread = later(scheduler.forget, "default", "u")
        time.sleep(0.02)
        proceed.set()
        assert ends(thread)
        assert engine.tokens == {}


def test_forgetting_reaches_the_engine_before_a_swap_that_still_works_for_the_user() -> None:
    old, new = FakeEngine(1), FakeEngine(2)
    with scheduling(old) as scheduler:
        held(scheduler, old, "u")
        scheduler.swap(new)
        new.tokens["u"] = 5
        dropped: list[int] = []
        thread = later(lambda: dropped.append(scheduler.forget("default", "u")))
        old.release()
        assert ends(thread)
        assert dropped == [2]
        assert not old.tokens
        assert not new.tokens


def test_a_swap_never_mixes_models_in_a_batch() -> None:
    old, new = FakeEngine(1), FakeEngine(2)
    with scheduling(old) as scheduler:
        first = held(scheduler, old)
        queued = [scheduler.rank(request(f"u{i}")) for i in range(3)]
        assert scheduler.swap(new) is old
        assert scheduler.engine is new
        old.release()
        answers = [result(job) for job in (first, *queued)]
    assert [answer.served.model for answer in answers] == [old.model_fp] + [new.model_fp] * 3
    assert [int(answer.logits[0, 0]) for answer in answers] == [1, 2, 2, 2]
    assert len(new.calls) == 1


def test_a_request_that_does_not_fit_the_new_model_fails_alone() -> None:
    old, new = FakeEngine(1), FakeEngine(2)
    with scheduling(old) as scheduler:
        held(scheduler, old)
        jobs = [scheduler.rank(request(name)) for name in ("a", "bad", "b")]
        scheduler.swap(new)
        old.release()
        assert [type(error(job)).__name__ for job in jobs] == ["NoneType", "RequestError", "NoneType"]


def test_flights_start_over_on_the_new_model_even_from_their_last_step() -> None:
    old, new = FakeEngine(1), FakeEngine(2)
    with scheduling(old, chunk_tokens=10) as scheduler:
        old.hold()
        last = flying(scheduler, "p", 10)
        old.await_call()
        queued = flying(scheduler, "q", 20)
        scheduler.swap(new)
        old.release()
        for flight in (last, queued):
            assert flight.future.result(5).model == new.model_fp
        await_true(lambda: at_rest(scheduler))
    assert new.tokens == {"p": 10, "q": 20}
    assert old.tokens == {"p": 10}


def test_an_engine_is_let_go_after_a_swap() -> None:
    """Its pool is most of the memory of the process."""
    with scheduling(make_engine()) as scheduler:
        old = make_engine()
        scheduler.swap(old)
        result(scheduler.rank(RankRequest(history("u", 20, 1), [1])))
        seen = weakref.ref(old)
        scheduler.swap(make_engine())
        del old
        await_true(lambda: gc.collect() >= 0 and seen() is None)


def test_a_drain_finishes_what_is_queued_and_refuses_what_is_new() -> None:
    engine, ears = FakeEngine(), Ears()
    with scheduling(engine, observer=ears, rank_batch_max=1, rank_batch_wait_ms=1000) as scheduler:
        engine.hold()
        flight = flying(scheduler, "p")
        engine.await_call()
        waiting = flying(scheduler, "q")
        jobs = [scheduler.rank(request(f"u{i}")) for i in range(4)]
        done: list[bool] = []
        thread = later(lambda: done.append(scheduler.drain(PATIENCE_S)))
        for one in (flight, waiting):
            assert isinstance(error(one), NotReadyError)
        with pytest.raises(NotReadyError):
            scheduler.rank(request("new"))
        with pytest.raises(NotReadyError):
            scheduler.prefix(user("new", 0))
        with pytest.raises(NotReadyError):
            scheduler.swap(FakeEngine())
        assert not any(job.future.done() for job in jobs)
        engine.release()
        for job in jobs:
            result(job)
        assert ends(thread)
        assert done == [True]
        assert engine.forget("default", "u0") == 1
        assert scheduler.forget("default", "u1") == 1  # deleting works on
    assert engine.calls == [("step", "p", 50), *(("rank", f"u{i}") for i in range(4))]
    assert [kind for kind, _ in ears.errors] == ["prefix"] * 2


def test_a_drain_whose_time_runs_out_answers_everybody_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LAST_TURN_S", 0.05)
    engine = FakeEngine()
    with scheduling(engine) as scheduler:
        jobs = [held(scheduler, engine), *(scheduler.rank(request(f"u{i}")) for i in range(3))]
        began = time.monotonic()
        assert not scheduler.drain(0.05)
        assert time.monotonic() - began < 5
        assert all(isinstance(job.future.exception(0), NotReadyError) for job in jobs)
        assert "still runs" in caplog.text
    assert engine.calls == [("rank", "first")]


def test_closing_ends_a_drain_and_may_be_repeated() -> None:
    engine = FakeEngine()
    with scheduling(engine) as scheduler:
        held(scheduler, engine)
        queued = scheduler.rank(request("queued"))
        thread = later(scheduler.drain, PATIENCE_S)
        await_true(lambda: scheduler._stage == "draining")
        closing = later(scheduler.close)
        assert isinstance(error(queued), NotReadyError)
        engine.release()
        assert ends(thread)
        assert ends(closing)
        scheduler.close()
        assert scheduler.drain(1.0)
        assert scheduler._stage == "closed"
        with pytest.raises(NotReadyError):
            scheduler.rank(request("new"))


def test_closing_while_batch_mates_are_waited_for() -> None:
    engine = FakeEngine()
    with scheduling(engine, rank_batch_wait_ms=1000) as scheduler:
        job = scheduler.rank(request("u"))
        time.sleep(0.02)
        began = time.monotonic()
        scheduler.close()
        assert time.monotonic() - began < 0.9
        assert isinstance(error(job), NotReadyError)
    assert engine.calls == []


def test_a_drain_does_not_wait_for_batch_mates() -> None:
    with scheduling(FakeEngine(), rank_batch_wait_ms=1000) as scheduler:
        job = scheduler.rank(request("u"))
        time.sleep(0.02)
        began = time.monotonic()
        assert scheduler.drain(PATIENCE_S)
        assert time.monotonic() - began < 0.9
        assert np.array_equal(result(job).logits, [[0], [0]])
