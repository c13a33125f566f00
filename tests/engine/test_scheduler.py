"""Ranking: who goes first, with whom, and what becomes of failures; over an engine that can be held."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest
from engine_models import dense_logits, history, make_engine
from scheduler_fakes import (
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

from patience import started_threads
from relaygr.core.errors import BackendError, OverloadError, RequestError
from relaygr.engine.jobs import Admission, Load, RankJob
from relaygr.engine.requests import Path, RankRequest


def test_answers_equal_the_engines() -> None:
    engine = make_engine()
    users = [history(f"u{i}", 10 * i, i) for i in range(10)]
    requests = [RankRequest(one, range(1 + i)) for i, one in enumerate(users)]
    with scheduling(engine) as scheduler:
        cold = [result(job) for job in [scheduler.rank(one) for one in requests]]
        warm = [result(job) for job in [scheduler.rank(one) for one in requests]]
    for one, first, second in zip(requests, cold, warm, strict=True):
        want = dense_logits(engine, one)
        assert first.served.path is Path.FULL
        assert second.served.tokens_computed == 0
        assert np.abs(first.logits - want).max() <= 1e-5
        assert np.abs(second.logits - want).max() <= 1e-5


def test_ranking_waits_for_at_most_one_step() -> None:
    engine = FakeEngine()
    with scheduling(engine, chunk_tokens=PAGE_STEP, rank_batch_max=1) as scheduler:
        engine.hold()
        flight = scheduler.prefix(user("p", 100)).flight
        assert flight is not None
        engine.await_call()
        for name in ("a", "b"):
            scheduler.rank(request(name))
        engine.go(3)
        await_true(lambda: len(engine.calls) == 4)  # the next step has begun
        middle = scheduler.rank(request("c"))
        engine.release()
        result(middle)
        assert flight.future.result(5).tokens_left == 0
    assert [call[:2] for call in engine.calls[:5]] == [
        ("step", "p"),
        ("rank", "a"),
        ("rank", "b"),
        ("step", "p"),
        ("rank", "c"),
    ]
    assert engine.tokens["p"] == 100
    assert (flight.steps, flight.computed) == (10, 100)


PAGE_STEP = 10


def held(scheduler: Any, engine: FakeEngine) -> RankJob:
    """A job that keeps the executor until the engine is released."""
    engine.hold()
    job: RankJob = scheduler.rank(request("first"))
    engine.await_call()
    return job


def test_earliest_deadline_first_and_arrival_for_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    with scheduling(engine, rank_batch_max=2) as scheduler:
        held(scheduler, engine)
        now = scheduler._clock.now_s()
        monkeypatch.setattr(scheduler._clock, "now_s", lambda: now)
        asked = {"a": 9000, "b": 5000, "c": 9000, "d": 7000, "e": 5000}
        jobs = [scheduler.rank(request(name), ms) for name, ms in asked.items()]
        monkeypatch.undo()
        engine.release()
        for job in jobs:
            result(job)
    assert engine.calls == [("rank", "first"), ("rank", "b", "e"), ("rank", "d", "a"), ("rank", "c")]


def test_batches_keep_both_limits() -> None:
    engine = FakeEngine()
    with scheduling(engine, rank_batch_max=3, rank_batch_tokens=100) as scheduler:
        held(scheduler, engine)
        sizes = {"a": 90, "b": 20, "c": 80, "d": 500, "e": 0, "f": 0, "g": 0, "h": 0}
        jobs = [scheduler.rank(request(name, size), 9000 + i) for i, (name, size) in enumerate(sizes.items())]
        engine.release()
        for job in jobs:
            result(job)
    assert [call[1:] for call in engine.calls[1:]] == [("a",), ("b", "c"), ("d",), ("e", "f", "g"), ("h",)]


def test_batches_never_exceed_what_the_engine_takes() -> None:
    engine = FakeEngine(batch=2)
    with scheduling(engine, rank_batch_max=16) as scheduler:
        held(scheduler, engine)
        jobs = [scheduler.rank(request(f"u{i}")) for i in range(5)]
        engine.release()
        for job in jobs:
            result(job)
    assert [len(call) - 1 for call in engine.calls] == [1, 2, 2, 1]


def test_what_is_cached_counts_nothing_towards_a_batch() -> None:
    engine = FakeEngine()
    engine.tokens = {"a": 90, "b": 90}
    with scheduling(engine, rank_batch_tokens=100) as scheduler:
        held(scheduler, engine)
        jobs = [scheduler.rank(request(name, 90)) for name in ("a", "b", "c")]
        engine.release()
        for job in jobs:
            result(job)
    assert engine.calls[1:] == [("rank", "a", "b", "c")]


def test_an_idle_engine_does_not_wait_for_batch_mates_by_default() -> None:
    engine = FakeEngine()
    with scheduling(engine) as scheduler:
        for i in range(3):
            result(scheduler.rank(request(f"u{i}")))
    assert len(engine.calls) == 3


def test_batch_mates_are_waited_for_when_asked() -> None:
    engine = FakeEngine()
    with scheduling(engine, rank_batch_wait_ms=1000, rank_batch_max=3) as scheduler:
        jobs = [scheduler.rank(request(f"u{i}")) for i in range(3)]
        began = time.monotonic()
        for job in jobs:
            result(job)
        assert time.monotonic() - began < 0.9  # a whole batch goes at once
        alone = scheduler.rank(request("alone"))
        assert not alone.future.done()
        result(alone)
        assert alone.started_s - alone.queued_s >= 0.99
        urgent = scheduler.rank(request("urgent"), 900)  # which the whole wait would let expire
        result(urgent)
        assert urgent.started_s - urgent.queued_s >= 0.44
    assert engine.calls == [("rank", "u0", "u1", "u2"), ("rank", "alone"), ("rank", "urgent")]


def test_one_bad_request_never_fails_its_batch() -> None:
    engine = FakeEngine()
    with scheduling(engine) as scheduler:
        held(scheduler, engine)
        jobs = [scheduler.rank(request(name)) for name in ("a", "bad", "b")]
        engine.release()
        assert isinstance(error(jobs[1]), RequestError)
        assert result(jobs[0]).logits.shape == result(jobs[2]).logits.shape == (2, 1)
        with pytest.raises(RequestError, match="contextual"):
            scheduler.rank(request("misfit"))
    assert engine.calls[1:] == [("rank", "a", "bad", "b")]


@pytest.mark.parametrize("failure", [ValueError("x"), MemoryError(), BackendError("nan"), RuntimeError("x")])
def test_a_failing_engine_answers_everybody_and_the_executor_lives_on(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    engine, ears = FakeEngine(), Ears()
    with scheduling(engine, observer=ears) as scheduler, caplog.at_level(logging.ERROR, "relaygr.engine"):
        first = held(scheduler, engine)
        jobs = [scheduler.rank(request(f"u{i}")) for i in range(4)]
        flight = scheduler.prefix(user("p", 50)).flight
        assert flight is not None
        engine.failure = failure
        engine.release()
        errors = [error(job) for job in (first, *jobs, flight)]
        assert all(isinstance(one, BackendError) for one in errors)
        assert len({id(one) for one in errors}) == len(errors)  # each may be raised on its own thread
        engine.failure = None
        assert result(scheduler.rank(request("after"))).logits.shape == (2, 1)
        await_true(lambda: at_rest(scheduler))
    assert sorted(kind for kind, _ in ears.errors) == ["prefix"] + ["rank"] * 5
    assert len(caplog.records) == (0 if isinstance(failure, BackendError) else 3)


def test_an_engine_that_answers_too_little_fails_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    with scheduling(engine) as scheduler:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "rank_batch", lambda requests: [])
            assert "0 answers to 1 requests" in str(error(scheduler.rank(request("a"))))
        result(scheduler.rank(request("b")))


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    engine = FakeEngine()
    with scheduling(engine, rank_queue_max=4, rank_batch_max=2) as scheduler:
        held(scheduler, engine)
        jobs = [scheduler.rank(request(f"u{i}")) for i in range(4)]
        assert scheduler.load() == Load(ranks=4, flights=0, busy=True)
        with pytest.raises(OverloadError, match="4 rank requests wait") as refused:
            scheduler.rank(request("late"))
        assert refused.value.retry_after_ms == 100
        jobs[1].cancel()
        again = scheduler.rank(request("again"))
        engine.release()
        for job in (jobs[0], *jobs[2:], again):
            result(job)
        await_true(lambda: scheduler.load() == Load(ranks=0, flights=0, busy=False))
    assert "u1" not in engine.ranked()
    assert "late" not in engine.ranked()


@pytest.mark.parametrize("asked", [0, -1, 0.5, float("nan"), 60_001])
def test_deadlines_out_of_range_are_refused(asked: float) -> None:
    engine = FakeEngine()
    with scheduling(engine) as scheduler:
        with pytest.raises(RequestError, match="deadline_ms"):
            scheduler.rank(request("u"), asked)
        with pytest.raises(RequestError, match="deadline_ms"):
            scheduler.prefix(user("u", 5), asked)
    assert not engine.calls


def test_a_request_that_does_not_fit_its_deadline_is_scored_with_less_history() -> None:
    engine, seen = make_engine(), []
    whole = history("u", 150, 7)

    def fit(job: RankJob, remaining_ms: float) -> int:
        seen.append((job.tokens, job.cached, remaining_ms))
        return 40

    with scheduling(engine, fit=fit) as scheduler:
        engine.prefetch(history("u", 60, 7))
        short = scheduler.rank(RankRequest(whole, [1, 2, 3]), 9000)
        got = result(short)
        assert (short.truncated, got.served.tokens_computed, got.served.resident) == (True, 40, False)
        want = dense_logits(engine, RankRequest(whole.newest(40), [1, 2, 3]))
        assert np.abs(got.logits - want).max() <= 1e-5
        assert engine.peek(RankRequest(history("u", 60, 7), ())) == (60, 60)  # the entry is untouched
        engine.prefetch(whole)
        hit = scheduler.rank(RankRequest(whole, [1, 2, 3]))
        assert result(hit).served.path is Path.HIT
        assert not hit.truncated
        assert engine.peek(RankRequest(whole, ())) == (150, 150)
    [(tokens, cached, remaining_ms)] = seen
    assert (tokens, cached) == (150, engine.peek(RankRequest(history("u", 60, 7), ()))[1])
    assert 5000 < remaining_ms <= 9000


@pytest.mark.parametrize(("count", "fits"), [(30, 30), (30, 1000), (400, 160), (0, 0)])
def test_a_history_that_fits_as_far_as_it_is_read_stays_whole(count: int, fits: int) -> None:
    """The model reads at most 160 tokens: 400 events of which 160 fit are not a truncated history."""
    engine = make_engine()
    with scheduling(engine, fit=lambda job, ms: fits) as scheduler:
        job = scheduler.rank(RankRequest(history("u", count, 7), [1, 2, 3]))
        assert result(job).served.resident
        assert not job.truncated


def test_the_fit_sees_what_became_of_the_prefix_while_the_request_waited() -> None:
    engine = FakeEngine()
    asked: list[str] = []

    def fit(job: RankJob, remaining_ms: float) -> int:
        asked.append(job.request.history.user)
        return 0

    with scheduling(engine, fit=fit) as scheduler:
        engine.tokens = {"gone": 50}
        held(scheduler, engine)
        came, gone = scheduler.rank(request("came", 50)), scheduler.rank(request("gone", 50))
        engine.tokens = {"came": 50}
        engine.release()
        result(came)
        result(gone)
    assert asked == ["gone"]
    assert (came.truncated, gone.truncated) == (False, True)
    assert [len(one.history) for one in engine.requests[1:]] == [50, 0]


def test_a_fit_that_fails_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()

    def fit(job: RankJob, remaining_ms: float) -> int:
        if job.request.history.user == "odd":
            raise ZeroDivisionError
        return 1000

    with scheduling(engine, fit=fit) as scheduler, caplog.at_level(logging.CRITICAL, "relaygr.engine"):
        held(scheduler, engine)
        jobs = [scheduler.rank(request(name, 5)) for name in ("a", "odd", "b")]
        engine.release()
        assert isinstance(error(jobs[1]), BackendError)
        for job in (jobs[0], jobs[2]):
            result(job)
    assert engine.calls[1:] == [("rank", "a", "b")]


def test_the_observer_hears_every_answer_once() -> None:
    engine, ears = FakeEngine(), Ears()
    with scheduling(engine, observer=ears, chunk_tokens=PAGE_STEP) as scheduler:
        first = held(scheduler, engine)
        jobs = {name: scheduler.rank(request(name)) for name in ("a", "bad", "given-up", "expired", "b")}
        jobs["given-up"].future.cancel()
        jobs["given-up"].cancel()
        jobs["expired"].expire()
        flight = scheduler.prefix(user("p", 30)).flight
        lost = scheduler.prefix(user("q", 30)).flight
        assert flight is not None
        assert lost is not None
        lost.cancel()
        engine.release()
        for job in (*jobs.values(), flight):
            error(job)
        await_true(lambda: at_rest(scheduler))
    assert ears.results == [first, jobs["a"], jobs["b"]]
    assert all(job.queued_s <= job.started_s <= job.done_s for job in ears.results)
    names = sorted((kind, type(one).__name__) for kind, one in ears.errors)
    assert names == [
        ("prefix", "CancelledError"),
        ("rank", "CancelledError"),
        ("rank", "DeadlineError"),
        ("rank", "RequestError"),
    ]
    assert [one for one, _ in ears.steps] == [flight] * 3
    assert all(seconds >= 0 for _, seconds in ears.steps)


def test_an_observer_that_raises_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Ears):
        def ranked(self, job: RankJob, result: object) -> None:
            raise OSError("full")

        def stepped(self, flight: object, seconds: float) -> None:
            raise OSError("full")

    with scheduling(FakeEngine(), observer=Broken()) as scheduler:
        for i in range(2):
            result(scheduler.rank(request(f"u{i}")))
            flight = scheduler.prefix(user(f"p{i}", 10)).flight
            assert flight is not None
            assert flight.future.result(5).tokens_left == 0
    assert [record.message for record in caplog.records] == ["an observer failed"] * 4


def test_the_same_user_twice_in_a_batch() -> None:
    engine = make_engine()
    one = RankRequest(history("u", 80, 5), [1, 2, 3])
    with scheduling(engine, rank_batch_wait_ms=300) as scheduler:
        answers = [result(job) for job in [scheduler.rank(one) for _ in range(3)]]
    for answer in answers:
        assert np.abs(answer.logits - dense_logits(engine, one)).max() <= 1e-5
    assert [answer.served.tokens_computed for answer in answers] == [80, 0, 0]


def test_thousands_of_jobs_leave_nothing() -> None:
    engine = FakeEngine()
    started = started_threads()
    with scheduling(engine, prefix_queue_max=100_000, rank_queue_max=100_000) as scheduler:
        for turn in range(3000):
            job = scheduler.rank(request(f"u{turn % 50}", 5))
            if turn % 3 == 0:
                job.cancel()
            if turn % 5 == 0:
                answer = scheduler.prefix(user(f"p{turn}", 25))
                if turn % 10 == 0 and answer.flight is not None:
                    answer.flight.future.cancel()
        await_true(lambda: at_rest(scheduler))
        assert sorted(thread.name for thread in started()) == ["relaygr-deadlines", "relaygr-executor"]
        assert len(scheduler._timer) < 2500
        assert scheduler.prefix(user("u1", 5)).admission is Admission.HIT
    assert not started()
