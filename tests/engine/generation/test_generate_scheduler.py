"""The thread of the scheduler: futures, queues, forget, drain; real answers under swaps and cancels."""

from __future__ import annotations

import resource
import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest
from generate_fakes import PATIENCE_S, ROUNDS, FakeAsk, FakeBackend, Listener, await_true, scheduling
from generate_rig import SETTINGS, catalogue, generator, of_tokens, of_user, one, rows, serving
from generate_rig import history as history_of

from relaygr.core.clock import ManualClock, MonotonicClock
from relaygr.core.errors import NotReadyError, RequestError
from relaygr.engine.generation.generator import Encoded
from relaygr.engine.generation.interface import StepKind
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.turns import Turnstile
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.errors import (
    GenerateCancelledError,
    GenerateDeadlineError,
    QueueFullError,
    TooLongError,
)


def test_answers_steps_and_waves_are_told() -> None:
    ears, backend = Listener(), FakeBackend(MonotonicClock())
    with scheduling(backend, observer=ears) as scheduler:
        job = scheduler.generate(FakeAsk("a", tokens=150))
        assert job.result(PATIENCE_S) == "answer of a"
        encoded = scheduler.encode(FakeAsk("p", tokens=150, rows=0))
        assert encoded.result(PATIENCE_S) == "encoded"
        await_true(lambda: len(ears.answers) == 2)
        assert ears.waves[0][:4] == (1, 1, 10, 150)
        kinds = [step.kind for step in ears.steps]
        assert kinds == [StepKind.PREFILL] * 2 + [StepKind.ROUND] * ROUNDS + [StepKind.ENCODE] * 2
        assert 0 < job.queued_s <= job.started_s <= job.prefilled_s <= job.done_s
        await_true(lambda: backend.chores >= 1)
        await_true(lambda: all(ask.closed == 1 for ask in backend.asks))


def test_refused_requests_never_wait_and_full_queues_say_when_to_come_back() -> None:
    ears, backend = Listener(), FakeBackend(MonotonicClock())
    backend.hold()
    with scheduling(backend, observer=ears, queue_max=2, prefetch_queue_max=1) as scheduler:
        with pytest.raises(TooLongError):
            scheduler.generate(FakeAsk("bad", poison="check"))
        with pytest.raises(RequestError, match="deadline_ms"):
            scheduler.generate(FakeAsk("late"), deadline_ms=1e9)
        running = scheduler.generate(FakeAsk("running"))
        backend.await_call()
        scheduler.generate(FakeAsk("a"))
        scheduler.generate(FakeAsk("b"))
        scheduler.encode(FakeAsk("p", rows=0))
        with pytest.raises(QueueFullError) as caught:
            scheduler.generate(FakeAsk("c"))
        assert (caught.value.limit, caught.value.request_id) == (2, "c")
        assert caught.value.retry_after_ms >= 10
        with pytest.raises(QueueFullError):
            scheduler.encode(FakeAsk("q", rows=0))
        assert (scheduler.load().waiting, scheduler.load().running, scheduler.load().prompts) == (2, 1, 1)
        backend.release()
        assert running.result(PATIENCE_S)
    assert not ears.errors or {kind for kind, _ in ears.errors} <= {"generate", "encode"}
    assert all(ask.closed for ask in backend.asks if ask.request_id not in ("bad",))


def test_generations_go_before_prompts_that_are_encoded_ahead() -> None:
    backend = FakeBackend(MonotonicClock())
    backend.hold()
    with scheduling(backend, max_wait_ms=0) as scheduler:
        prompt = scheduler.encode(FakeAsk("p", tokens=300, rows=0))
        backend.await_call()
        job = scheduler.generate(FakeAsk("a"))
        backend.release()
        assert job.result(PATIENCE_S)
        assert prompt.result(PATIENCE_S) == "encoded"
    assert backend.calls[:3] == [("encode", "p"), ("prefill", "a"), ("round", "a")]


def test_a_cancelled_or_late_request_leaves_before_the_next_round() -> None:
    backend = FakeBackend(MonotonicClock())
    backend.hold()
    with scheduling(backend) as scheduler:
        job = scheduler.generate(FakeAsk("a"))
        backend.await_call()
        assert job.cancel()
        backend.go()
        assert isinstance(job.exception(PATIENCE_S), GenerateCancelledError)
        await_true(lambda: backend.used == 0)
        late = scheduler.generate(FakeAsk("b"), deadline_ms=200)
        backend.await_call()
        assert isinstance(late.exception(PATIENCE_S), GenerateDeadlineError)
        backend.go()
        await_true(lambda: backend.used == 0)
        assert [call[0] for call in backend.calls] == ["prefill", "prefill"]
        # Work that nobody waits for any more is not begun either.
        blocked = scheduler.generate(FakeAsk("c"))
        backend.await_call()
        gone = scheduler.generate(FakeAsk("d"))
        gone.cancel()
        backend.release()
        assert blocked.result(PATIENCE_S)
        await_true(lambda: backend.asks[-1].closed == 1)
        assert not any("d" in call for call in backend.calls)


def test_a_deleted_user_is_cancelled_and_waited_for() -> None:
    backend = FakeBackend(MonotonicClock())
    backend.hold()
    with scheduling(backend) as scheduler:
        mine = scheduler.generate(FakeAsk("a", owner=("default", "u")))
        other = scheduler.generate(FakeAsk("b", owner=("default", "v")))
        backend.await_call()
        waiting = scheduler.encode(FakeAsk("p", owner=("default", "u"), rows=0))
        thread = threading.Thread(target=scheduler.forget, args=("default", "u"))
        thread.start()
        assert isinstance(mine.exception(PATIENCE_S), GenerateCancelledError)
        assert isinstance(waiting.exception(PATIENCE_S), GenerateCancelledError)
        time.sleep(0.02)
        assert not backend.forgotten
        backend.release()
        thread.join(PATIENCE_S)
        assert backend.forgotten == ["u"]
        assert other.result(PATIENCE_S)


def test_a_drain_finishes_generations_and_drops_prompts_and_a_close_drops_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relaygr.engine.generation.scheduler._LAST_TURN_S", 0.05)
    backend = FakeBackend(MonotonicClock(), step_s=0.002)
    with scheduling(backend) as scheduler:
        jobs = [scheduler.generate(FakeAsk(str(n), rows=60)) for n in range(4)]
        prompt = scheduler.encode(FakeAsk("p", tokens=10_000, rows=0))
        assert scheduler.drain(PATIENCE_S)
        assert all(job.result(0) for job in jobs)
        assert isinstance(prompt.exception(0), NotReadyError)
        with pytest.raises(NotReadyError):
            scheduler.generate(FakeAsk("late"))
    backend = FakeBackend(MonotonicClock())
    backend.hold()
    with scheduling(backend) as scheduler:
        jobs = [scheduler.generate(FakeAsk(str(n), rows=60)) for n in range(4)]
        backend.await_call()
        assert not scheduler.drain(0.0)
        assert all(isinstance(job.exception(0), NotReadyError) for job in jobs)
        backend.release()
    assert backend.used == 0
    assert all(ask.closed for ask in backend.asks)


def test_an_idle_scheduler_takes_no_processor_time_and_adds_no_wait() -> None:
    backend = FakeBackend(MonotonicClock())
    with scheduling(backend, max_wait_ms=1000) as scheduler:
        scheduler.generate(FakeAsk("warm")).result(PATIENCE_S)
        await_true(lambda: scheduler.load().running == 0)
        time.sleep(0.05)
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.monotonic()
        time.sleep(0.5)
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert spent / (time.monotonic() - began) < 0.02
        waits = []
        for number in range(50):
            job = scheduler.generate(FakeAsk(str(number)))
            job.result(PATIENCE_S)
            waits.append(job.started_s - job.queued_s)
            await_true(lambda: scheduler.load().running == 0)
        assert np.median(waits) < 1e-3


def test_steps_take_turns_with_rankings() -> None:
    turns = Turnstile(yield_s=10)
    backend = FakeBackend(MonotonicClock())
    with scheduling(backend, turns=turns) as scheduler:
        with turns.turn(ranking=True):
            job = scheduler.generate(FakeAsk("a"))
            await_true(lambda: turns.waiting() == (0, 1))
            assert not backend.calls
        assert job.result(PATIENCE_S)


def test_a_virtual_clock_expires_what_it_passes() -> None:
    clock = ManualClock()
    backend = FakeBackend(clock)
    backend.hold()
    with scheduling(backend) as scheduler:
        job = scheduler.generate(FakeAsk("a"), deadline_ms=100)
        backend.await_call()
        clock.advance(0.2)
        backend.go()
        assert isinstance(job.exception(PATIENCE_S), GenerateDeadlineError)


@pytest.mark.parametrize("mode", ["fixed", "continuous"])
def test_real_requests_of_all_kinds_side_by_side_are_what_they_are_alone(mode: str) -> None:
    rng = np.random.default_rng(0)
    asked = []
    for number in range(15):
        width = int(rng.choice([1, 2, 7, 16, 33]))
        if number % 3:
            tokens = rng.integers(0, 50, int(rng.integers(1, 200))).tolist()
            asked.append(of_tokens(tokens, beam_width=width, request_id=str(number)))
        else:
            items = rng.integers(0, 400, int(rng.integers(1, 60))).tolist()
            more = {"normalization": "full"} if number % 2 else {"deny": items, "num_results": 5}
            asked.append(of_user(f"u{number}", items, beam_width=width, **more))
    solo = generator()
    alone = [rows(one(solo, request)) for request in asked]
    solo.close()
    with serving({"scheduling": mode, "max_beam_rows": 60, "max_beam_width": 40, "beam_width": 8}) as (
        backend,
        scheduler,
    ):
        jobs = [scheduler.generate(request) for request in asked]
        assert [rows(job.result(PATIENCE_S)) for job in jobs] == alone
        assert max(job.wave for job in jobs) > 1
        await_true(lambda: scheduler.load().running == 0)
        after = backend.stats()
        assert (after.seats, after.beam_bytes, after.scratch_bytes, after.pages.pinned_pages) == (0, 0, 0, 0)
        assert backend.catalogues.status().pins == 0
        assert backend.trace.spans("prepare")


def test_prompts_are_encoded_ahead_by_the_scheduler() -> None:
    items = list(range(50))
    with serving({"prefill_chunk_tokens": 64}) as (_, scheduler):
        done = scheduler.encode(Asked(history=history_of("u", items))).result(PATIENCE_S)
        assert isinstance(done, Encoded)
        assert done.resident
        answer = scheduler.generate(of_user("u", items)).result(PATIENCE_S)
        assert answer.result.cached_tokens == answer.result.prompt_tokens == done.tokens


def test_catalogues_change_under_load_and_no_answer_mixes_them() -> None:
    versions = [catalogue(seed) for seed in range(3)]
    asked = [of_user(f"u{n}", [n, n + 1, n + 2], beam_width=3) for n in range(3)]
    expected = {}
    for version in versions:
        catalogues = Catalogues()
        catalogues.install(version)
        solo = generator(catalogues=catalogues)
        expected[version.label] = [rows(one(solo, request)) for request in asked]
        solo.close()
    catalogues = Catalogues()
    catalogues.install(versions[0])
    seen: set[str] = set()
    with serving(catalogues=catalogues) as (_, scheduler):
        for turn in range(18):
            jobs = [scheduler.generate(request) for request in asked]
            if turn % 3 == 1:
                catalogues.install(versions[turn // 3 % 3])
            elif turn % 9 == 8:
                catalogues.rollback()
            jobs += [scheduler.generate(request) for request in asked]
            for place, job in enumerate(jobs):
                answer = job.result(PATIENCE_S)
                label = answer.result.catalog_version
                seen.add(label)
                assert rows(answer) == expected[label][place % len(asked)]
        await_true(lambda: catalogues.status().pins == 0)
    assert len(seen) == 3


@pytest.mark.parametrize("mode", ["fixed", "continuous"])
def test_random_cancels_deadlines_and_faults_leave_nothing(mode: str) -> None:
    soak(160, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fixed", "continuous"])
def test_ten_thousand_requests_with_random_cancels_leave_nothing(mode: str) -> None:
    soak(10_000, mode)


def soak(count: int, mode: str) -> None:
    """Requests of all kinds from several threads; each is answered once, answers are those of solo runs."""
    rng = np.random.default_rng(1)
    kinds = [
        of_user(f"u{n % 11}", rng.integers(0, 400, 5 + 3 * (n % 11)).tolist(), beam_width=1 + n % 13)
        if n % 3 == 0
        else of_tokens(rng.integers(0, 50, 3 + 5 * n).tolist(), beam_width=1 + n % 7)
        for n in range(33)
    ]
    solo = generator()
    alone = [rows(one(solo, asked)) for asked in kinds]
    solo.close()
    endings: dict[str, int] = {}
    lock = threading.Lock()
    tight = {"device_bytes": SETTINGS["device_bytes"], "beam_bytes": 1 << 17, "host_bytes": 1 << 20}
    settings = {**tight, "scheduling": mode, "queue_max": 64, "max_bypass_ms": 5}
    with serving(settings) as (backend, scheduler):

        def drive(seed: int) -> None:
            mine = np.random.default_rng(seed)
            for _ in range(count // 4):
                kind = int(mine.integers(len(kinds)))
                deadline_ms = float(mine.choice([2.0, 5000.0], p=[0.1, 0.9]))
                try:
                    job = scheduler.generate(kinds[kind], deadline_ms=deadline_ms)
                except QueueFullError:
                    time.sleep(0.005)
                    name = "full"
                else:
                    if mine.random() < 0.15:
                        time.sleep(float(mine.random()) * 0.01)
                        job.cancel()
                    if mine.random() < 0.02:
                        scheduler.encode(Asked(history=history_of("u1", list(range(40)))))
                    if mine.random() < 0.02:
                        scheduler.forget("default", f"u{int(mine.integers(11))}")
                    wait([job], PATIENCE_S)
                    error = job.exception(0)
                    name = type(error).__name__
                    if error is None:
                        assert rows(job.result()) == alone[kind]
                with lock:
                    endings[name] = endings.get(name, 0) + 1

        failures: list[BaseException] = []

        def guarded(seed: int) -> None:
            try:
                drive(seed)
            except BaseException as error:  # noqa: BLE001 - raised again below
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        assert sum(endings.values()) == count // 4 * 4
        assert endings["NoneType"] > count / 2
        assert set(endings) <= {"NoneType", "GenerateCancelledError", "GenerateDeadlineError", "full"}
        await_true(lambda: scheduler.load().running == scheduler.load().waiting == 0)

        def held() -> list[int]:
            now = backend.stats()
            return [now.seats, now.beam_bytes, now.scratch_bytes, now.pages.pinned_pages]

        # Prompts that are encoded ahead, or were asked for by whom is gone, may still be on their way.
        await_true(lambda: scheduler.load().prompts == 0 and not any(held()))
        await_true(lambda: backend.catalogues.status().pins == 0)
        backend._states.tiers.books.audit()


def test_a_user_deleted_before_a_request_is_queued_is_not_generated_for() -> None:
    backend = FakeBackend(MonotonicClock())
    with scheduling(backend) as scheduler:
        mine, other = scheduler.claim("default", "u"), scheduler.claim("default", "v")
        scheduler.forget("default", "u")
        for submit, rows_of in ((scheduler.generate, 10), (scheduler.encode, 0)):
            ask = FakeAsk("a", owner=("default", "u"), rows=rows_of)
            with pytest.raises(GenerateCancelledError, match="deleted"):
                submit(ask, None, mine)
            assert ask.closed == 1
        assert scheduler.generate(FakeAsk("b", owner=("default", "v")), None, other).result(PATIENCE_S)
        # Who comes back is somebody new.
        again = scheduler.claim("default", "u")
        assert scheduler.generate(FakeAsk("c", owner=("default", "u")), None, again).result(PATIENCE_S)
