"""One production for any number of signals; ranking waits for one step at most; what is shed first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from relay_rig import CANDIDATES, FULL, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S, await_true

from relaygr.core.errors import OverloadError
from relaygr.engine.engine import Engine
from relaygr.engine.jobs import Admission, PrefixAnswer, RankJob
from relaygr.engine.requests import Path, RankRequest
from relaygr.relay.hold import State
from relaygr.relay.trigger import Verdict

ONE, TWO = user("one"), user("two")
HOST = {"host_bytes": 4 << 20, "clean_target": 0.4}


def together(count: int, work: Callable[[], PrefixAnswer]) -> list[PrefixAnswer]:
    """From so many threads at once."""
    answers: list[PrefixAnswer] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait(PATIENCE_S)
        answers.append(work())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers) == count
    return answers


@pytest.mark.parametrize("in_host", [False, True])
def test_r16_any_number_of_signals_make_one_production_or_reload(
    in_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(host=HOST, trigger={"key_inflight_max": 64, "pre_burst": 64}) as r:
        if in_host:
            r.rank(ONE)
            r.crowd(3)
        calls: dict[str, int] = {"prefetch_chunk": 0, "reload_step": 0}
        for name in calls:
            monkeypatch.setattr(r.engine, name, counted(r.engine, name, calls))
        before, (read, _) = r.engine.stats().tokens_computed, r.engine.copied_bytes
        answers = together(32, lambda: r.signal(ONE))
        r.rest()
        assert {answer.admission for answer in answers} <= {
            Admission.ADMITTED,
            Admission.JOINED,
            Admission.HIT,
        }
        assert [answer.admission for answer in answers].count(Admission.ADMITTED) == 1
        assert r.engine.stats().tokens_computed - before == (0 if in_host else FULL)
        tokens = (r.engine.copied_bytes[0] - read) // r.engine.layout.token_bytes
        assert tokens == (FULL if in_host else 0)
        # One page a step; a reload is followed by a step that finds nothing to compute.
        assert calls == (
            {"prefetch_chunk": 1, "reload_step": 1} if in_host else {"prefetch_chunk": 5, "reload_step": 0}
        )
        assert (r.state(ONE), r.claims(ONE)) == (State.READY, 32)
        for _ in range(32):
            r.ask(ONE).future.result(PATIENCE_S)
        r.rest()
        assert r.state(ONE) is None


@pytest.mark.parametrize("in_host", [False, True])
def test_r16_a_flight_may_land_while_the_next_signal_is_decided_on(
    in_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(host=HOST) as r:
        if in_host:
            r.rank(ONE)
            r.crowd(3)
        decide, found = r.relay.decide, []

        def slow(*asked: Any) -> Verdict:
            found.append(asked[2])
            verdict = decide(*asked)
            if len(found) == 1:  # the first signal: meanwhile another comes, and its flight lands
                assert r.prepare(ONE).admission is Admission.ADMITTED
            return verdict

        monkeypatch.setattr(r.relay, "decide", slow)
        assert r.signal(ONE).admission is Admission.HIT
        assert [one.near for one in found] == [FULL if in_host else 0] * 2, (
            "the second saw nothing on the device, either"
        )
        r.rest()
        assert (r.state(ONE), r.claims(ONE)) == (State.READY, 2)
        assert len({flight for flight, _ in r.observer.steps}) == 1
        for _ in range(2):
            r.ask(ONE).future.result(PATIENCE_S)


def test_a_flight_that_just_failed_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(host=HOST) as r:
        r.rank(ONE)
        r.crowd(3)
        r.brake.stop()
        r.signal(TWO)
        r.brake.await_step()
        ended = r.scheduler._ended

        def late(job: Any) -> None:
            monkeypatch.setattr(r.scheduler, "_ended", ended)
            again = r.signal(ONE)
            ended(job)
            assert again.flight is not None
            assert (again.admission, again.flight.reloading) == (Admission.ADMITTED, True)
            seen.append(again)

        seen: list[PrefixAnswer] = []
        monkeypatch.setattr(r.scheduler, "_ended", late)
        first = r.signal(ONE)
        assert first.flight is not None
        first.flight.cancel("its user went away")
        assert len(seen) == 1
        r.brake.release()
        r.rest()
        for one in (ONE, TWO):
            r.right(job := r.ask(one), job.future.result(PATIENCE_S))


def counted(engine: Engine, name: str, calls: dict[str, int]) -> Callable[..., object]:
    before = getattr(engine, name)

    def call(*arguments: object) -> object:
        calls[name] += 1
        return before(*arguments)

    return call


def test_r16_signals_and_rankings_of_one_user_at_once() -> None:
    with rig(host=HOST, trigger={"key_inflight_max": 64}) as r:
        jobs: list[RankJob] = []

        def both() -> PrefixAnswer:
            answer = r.signal(ONE)
            jobs.append(r.ask(ONE))
            return answer

        together(16, both)
        for job in jobs:
            r.right(job, job.future.result(PATIENCE_S))
        r.rest()
        assert r.engine.stats().tokens_computed == FULL


def test_more_requests_of_one_user_than_are_allowed_are_hot() -> None:
    with rig(trigger={"key_inflight_max": 3}) as r:
        answers = [r.prepare(ONE) for _ in range(4)]
        assert [answer.reason for answer in answers] == ["", "", "", "hot_key"]
        assert (r.claims(ONE), r.prepare(TWO).reason) == (3, "")
        assert r.rank(ONE).served.path is Path.HIT
        assert r.prepare(ONE).reason == ""


def test_a_joined_flight_goes_on_to_the_newer_history() -> None:
    with rig() as r:
        r.brake.stop()
        r.signal(user("one", 100))
        r.brake.await_step()
        newer = longer(user("one", 100), 20)
        assert r.signal(newer).admission is Admission.JOINED
        r.brake.release()
        r.rest()
        assert r.cached(newer) == (120, 0)
        assert r.engine.stats().tokens_computed == 120
        assert r.rank(newer).served.path is Path.HIT


@pytest.mark.parametrize("budget_ms", [1.0, 1000.0])
def test_r22_ranking_waits_for_one_step_of_a_flight_and_not_for_its_end(budget_ms: float) -> None:
    with rig() as r:
        r.brake.stop()
        answer = r.signal(ONE)
        assert answer.flight is not None
        for _ in range(2):
            r.brake.await_step()
            r.brake.go()
        r.brake.await_step()
        job = r.ask(ONE, budget_ms=budget_ms)
        r.brake.go()  # the step that runs, and no other
        ranked = job.future.result(PATIENCE_S)
        r.right(job, ranked)
        assert (ranked.served.path, ranked.served.tokens_cached) == (Path.RESUMED, 96)
        assert answer.flight.steps == 3


def test_r22_a_ranking_of_another_user_waits_for_one_step_either() -> None:
    with rig(rank_batch_max=1) as r:
        r.brake.stop()
        r.signal(ONE)
        r.brake.await_step()
        jobs = [r.ask(user(f"u{number}", 20)) for number in range(5)]
        r.brake.go()
        for job in jobs:
            r.right(job, job.future.result(PATIENCE_S))
        r.brake.await_step()  # the next one, which is stopped
        assert r.brake.steps == 2


def busy(r: Rig) -> None:
    """The executor is in the middle of a step."""
    r.brake.stop()
    r.signal(TWO)
    r.brake.await_step()


@pytest.mark.parametrize(
    ("waiting", "shed"),
    [
        (2, set()),
        (5, {"pre-inference"}),
        (8, {"pre-inference", "length"}),
        (14, {"pre-inference", "length", "ranking"}),
    ],
)
def test_r31_overload_sheds_pre_inference_then_length_then_ranking(waiting: int, shed: set[str]) -> None:
    """Rankings with 60 ms, each of which takes ten with its history."""

    def fit(job: RankJob, left_ms: float) -> int:
        return len(job.request.history) if left_ms >= 10.0 else 16

    with rig(rank_batch_max=2, rank_queue_max=12, fit=fit) as r:
        r.scheduler._cost = lambda job: 10.0 if job.missing else 1.0
        busy(r)
        jobs: list[RankJob] = []
        found: set[str] = set()
        for number in range(waiting):
            try:
                jobs.append(r.ask(user(f"u{number}", 100), budget_ms=60.0))
            except OverloadError:
                found.add("ranking")
        if r.signal(user("p", 10)).reason == "load":
            found.add("pre-inference")
        r.brake.release()
        for job in jobs:
            answer = job.future.result(PATIENCE_S)
            assert len(answer.logits) == len(CANDIDATES)
            if job.kept_events is None:
                r.right(job, answer)
            else:
                assert job.kept_events == 16
                found.add("length")
        assert found == shed


def test_a_burst_of_which_most_is_cancelled_and_normal_load_after_it() -> None:
    with rig(rank_queue_max=512, trigger={"pre_burst": 512}) as r:
        busy(r)
        users = [user(f"u{number % 20}", 60) for number in range(100)]
        for one in users:
            r.signal(one)
        jobs = [r.ask(one, CANDIDATES) for one in users]
        assert r.scheduler.load().ranks == 100
        for number, job in enumerate(jobs):
            if number % 5:
                job.cancel()
        assert r.scheduler.load().ranks == 20
        r.brake.release()
        for job in jobs[::5]:
            r.right(job, job.future.result(PATIENCE_S))
        r.rest()
        assert r.scheduler.load().ranks == 0
        one = user("later")
        assert r.prepare(one).admission is Admission.ADMITTED
        assert r.rank(one).served.path is Path.HIT


def test_the_load_that_a_member_tells_moves() -> None:
    with rig() as r:
        assert r.scheduler.load().busy is False
        busy(r)
        before = r.scheduler.load()
        for number in range(4):
            r.signal(user(f"p{number}", 20))
            r.ask(user(f"u{number}", 20))
        after = r.scheduler.load()
        assert (before.busy, before.ranks, after.ranks, after.flights - before.flights) == (True, 0, 4, 4)
        r.brake.release()
        await_true(lambda: r.scheduler.load().ranks == 0)


@pytest.mark.parametrize("events", [0, 1, 5])
def test_r11_short_and_empty_histories(events: int) -> None:
    with rig(host=HOST) as r:
        one = user("one", events)
        answer = r.prepare(one)
        assert answer.admission is (Admission.ADMITTED if events else Admission.HIT)
        assert r.rank(one).served.tokens_computed == 0
        assert r.engine.rank(RankRequest(one, ())).logits.shape == (0, 2)
