"""Clients that ask again in the callback of an answer, on a clock that only steps and tests move.

Whoever is held there waits for ever, or until the test lets time pass.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from generate_fakes import ROUNDS, FakeAsk, FakeBackend, Listener, scheduling

from patience import PATIENCE_S, await_true
from relaygr.core.clock import ManualClock
from relaygr.engine.generation.jobs import AnyJob
from relaygr.engine.generation.scheduler import GenerateScheduler

TURNS = 20


class Client:
    """Asks for `group` answers at once, and for as many again when it has the last of them."""

    def __init__(self, scheduler: GenerateScheduler, group: int) -> None:
        self.jobs: list[AnyJob] = []
        self.over = threading.Event()
        self._scheduler, self._group, self._missing = scheduler, group, 0
        self._ask()

    def _ask(self) -> None:
        self._missing = self._group
        for _ in range(self._group):
            job = self._scheduler.generate(FakeAsk(str(len(self.jobs))))
            self.jobs.append(job)
        for job in self.jobs[-self._group :]:
            job.add_done_callback(self._answered)

    def _answered(self, _: object) -> None:
        self._missing -= 1
        if self._missing:
            return
        if len(self.jobs) < TURNS * self._group:
            self._ask()
        else:
            self.over.set()


def test_a_client_that_asks_again_at_once_never_waits() -> None:
    ears, backend = Listener(), FakeBackend(step_s=0.01)
    with scheduling(backend, observer=ears) as scheduler:
        client = Client(scheduler, 1)
        assert client.over.wait(PATIENCE_S), "a request is held although nothing runs"
        assert [job.started_s - job.queued_s for job in client.jobs] == [0.0] * TURNS
        assert [wave[:2] for wave in ears.waves] == [(1, 1)] * TURNS


def test_a_group_that_is_asked_for_again_at_once_starts_together_and_never_waits() -> None:
    ears, backend = Listener(), FakeBackend(step_s=0.01)
    with scheduling(backend, observer=ears) as scheduler:
        backend.hold()  # so that the first group is complete when it is looked at
        blocking = scheduler.generate(FakeAsk("blocking", rows=100))
        backend.await_call()
        client = Client(scheduler, 3)
        backend.release()
        assert blocking.result(PATIENCE_S)
        assert client.over.wait(PATIENCE_S), "a group is held although nothing runs"
        assert [job.started_s - job.queued_s for job in client.jobs[3:]] == [0.0] * 3 * (TURNS - 1)
        assert [wave[:2] for wave in ears.waves] == [(1, 1)] + [(3, 3)] * TURNS


@pytest.mark.parametrize("other", ["waits", "runs"])
def test_with_others_about_a_group_is_waited_for(other: str) -> None:
    """One that asks again while another waits, or runs, is under load: mates may come, and they do."""
    clock = ManualClock()
    backend = FakeBackend(clock)
    backend.hold()
    with scheduling(backend, max_wait_ms=4) as scheduler:
        again: list[AnyJob] = []
        blocking = scheduler.generate(FakeAsk("blocking", rows=100))
        backend.await_call()
        jobs = [scheduler.generate(FakeAsk(name)) for name in "ab"]
        first = blocking
        if other == "runs":
            first = jobs[0]  # b is answered right behind it
            backend.go(1 + ROUNDS)
            assert blocking.result(PATIENCE_S)
            clock.advance(0.004)
            await_true(lambda: scheduler.load().running == 2)
        first.add_done_callback(lambda _: again.append(scheduler.generate(FakeAsk("again"))))
        backend.release()
        assert first.result(PATIENCE_S)
        held: list[Any] = [*(jobs if other == "waits" else ()), *await_one(again)]
        await_true(lambda: scheduler.load().running == 0)
        late = scheduler.generate(FakeAsk("late"))
        assert not any(job.done() for job in held)
        clock.advance(0.004)
        assert all(job.result(PATIENCE_S) for job in (*held, late))
        assert {job.wave for job in (*held, late)} == {len(held) + 1}


def await_one(found: list[AnyJob]) -> list[AnyJob]:
    await_true(lambda: bool(found))
    return found


def test_what_nobody_waits_for_any_more_is_no_load() -> None:
    backend = FakeBackend()
    backend.hold()
    with scheduling(backend) as scheduler:
        again: list[AnyJob] = []
        running = scheduler.generate(FakeAsk("running"))
        backend.await_call()
        scheduler.generate(FakeAsk("gone")).cancel()
        running.add_done_callback(lambda _: again.append(scheduler.generate(FakeAsk("again"))))
        backend.release()
        assert await_one(again)[0].result(PATIENCE_S), "it is held for one that will not come"


def test_a_prompt_that_is_encoded_ahead_is_no_load() -> None:
    backend = FakeBackend()
    backend.hold()
    with scheduling(backend) as scheduler:
        prompt = scheduler.encode(FakeAsk("prompt", tokens=300, rows=0))
        backend.await_call()
        alone = scheduler.generate(FakeAsk("alone"))
        backend.release()
        assert alone.result(PATIENCE_S), "it is held for a prompt"
        assert prompt.result(PATIENCE_S)
    assert backend.calls[1] == ("prefill", "alone")
