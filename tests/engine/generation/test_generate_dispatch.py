"""Who starts when, on a clock that only steps move: budgets, waits, bypass and its end, deadlines."""

from __future__ import annotations

from typing import Any

import pytest
from generate_fakes import CHUNK, ROUNDS, FakeAsk, FakeBackend

from relaygr.config.generator import GeneratorConfig
from relaygr.core.clock import ManualClock
from relaygr.engine.generation.dispatch import Dispatch, Line, Wave
from relaygr.engine.generation.jobs import GenerateJob
from relaygr.generation.errors import (
    GenerateDeadlineError,
    InternalError,
    QueueFullError,
)


class Site:
    """A dispatch, a wave and a line, driven as the executor drives them."""

    def __init__(self, memory: int = 1 << 30, step_s: float = 0.01, **settings: Any) -> None:
        self.clock = ManualClock()
        self.backend = FakeBackend(self.clock, step_s, memory)
        settings.setdefault("max_beam_width", 100)
        settings.setdefault("beam_width", 10)
        self.config = GeneratorConfig(**{"max_beam_rows": 100, "max_bypass_ms": 50, **settings})
        self.dispatch = Dispatch(self.backend, self.config, self.clock)
        self.wave = Wave(self.backend, self.clock, lockstep=not self.dispatch.continuous)
        self.line = Line(self.config.queue_max)

    def put(self, name: str, tokens: int = CHUNK, rows: int = 10, **more: Any) -> GenerateJob[Any]:
        deadline_s = self.clock.now_s() + more.pop("deadline_s", 1000.0)
        job: GenerateJob[Any] = GenerateJob(
            FakeAsk(name, tokens, rows, **more), deadline_s, self.clock.now_s()
        )
        assert self.line.put(job)
        return job

    def board(self) -> list[str]:
        waiting = tuple(self.line)
        if self.dispatch.hold_s(waiting, self.wave) > 0:
            return []
        before = len(self.wave)
        self.line.remove(self.dispatch.board(waiting, self.wave))
        self.line.sweep()
        return [rider.job.ask.request_id for rider in self.wave.riders[before:]]

    def step(self) -> None:
        self.dispatch.rested = False
        self.wave.step()

    def run(self) -> None:
        while self.wave.riders:
            self.step()


def test_an_idle_engine_starts_at_once() -> None:
    site = Site()
    site.put("a")
    assert site.dispatch.hold_s(tuple(site.line), site.wave) == 0
    assert site.board() == ["a"]


def test_after_a_group_the_oldest_waits_for_mates_and_no_longer_than_the_limit() -> None:
    site = Site(max_wait_ms=4)
    site.put("a")
    site.board()
    site.run()
    site.put("b")  # came before the executor looked: it was busy
    assert site.dispatch.hold_s(tuple(site.line), site.wave) == pytest.approx(0.004)
    site.clock.advance(0.003)
    site.put("c")
    assert site.dispatch.hold_s(tuple(site.line), site.wave) == pytest.approx(0.001)
    assert site.board() == []
    site.clock.advance(0.001)
    assert site.board() == ["b", "c"]


def test_nobody_waits_past_the_middle_of_the_time_there_is() -> None:
    site = Site(max_wait_ms=100)
    site.dispatch.rested = False
    site.put("a")
    site.put("b", deadline_s=0.01)
    assert site.dispatch.hold_s(tuple(site.line), site.wave) == pytest.approx(0.005)


def test_what_has_too_many_rows_is_not_looked_for_in_the_cache() -> None:
    site = Site(scheduling="continuous")
    site.put("a", rows=60)
    site.board()
    site.put("b", rows=50, poison="need")
    assert site.board() == []
    assert len(site.line) == 1


@pytest.mark.parametrize(("tokens", "rows"), [(10, 50), (5120, 1)])
def test_a_full_budget_ends_the_wait(tokens: int, rows: int) -> None:
    site = Site(max_wait_ms=1000)
    site.dispatch.rested = False
    site.put("a", tokens, rows)
    assert site.dispatch.hold_s(tuple(site.line), site.wave) > 0
    site.put("b", tokens, rows)
    assert site.dispatch.hold_s(tuple(site.line), site.wave) == 0
    assert site.board() == ["a", "b"]


def test_a_group_stays_within_both_budgets_and_the_memory() -> None:
    site = Site(memory=3)
    for name, tokens, rows in (("a", 100, 60), ("b", 100, 50), ("c", 10_200, 1), ("d", 100, 40)):
        site.put(name, tokens, rows)
    assert site.board() == ["a", "d"]  # b has too many rows for the rest, c too many tokens
    site.run()
    site.clock.advance(0.01)
    assert site.board() == ["b"]
    site.put("e", nbytes=3)  # no memory beside b
    site.put("f", nbytes=2)
    site.run()
    site.clock.advance(0.01)
    assert site.board() == ["c"]


def test_one_that_never_had_a_chance_is_refused_when_nothing_runs() -> None:
    site = Site(memory=1)
    large, small = site.put("large", nbytes=2), site.put("small")
    assert site.board() == ["small"]
    error = large.exception()
    assert isinstance(error, QueueFullError)
    assert error.retry_after_ms >= 10
    assert small.waiting


def test_smaller_ones_pass_for_a_bounded_time_then_room_is_kept() -> None:
    site = Site(scheduling="continuous", max_bypass_ms=50, step_s=0.01)
    site.put("first", rows=60)
    assert site.board() == ["first"]
    wide = site.put("wide", rows=60)
    site.step()
    passed = 0
    for turn in range(30):
        site.put(f"small{turn}", rows=10)
        started = site.board()
        if "wide" in started:
            break
        passed += len(started)
        site.step()
        if turn == 2:
            site.put("first again", rows=60)
    assert wide.started_s
    assert passed >= 1
    assert wide.started_s - wide.queued_s < 0.05 + 5 * 0.02


def test_no_stream_of_small_ones_starves_a_wide_one() -> None:
    site = Site(scheduling="continuous", max_bypass_ms=50, step_s=0.01)
    for number in range(9):
        site.put(f"running{number}", tokens=10)
    site.board()
    wide = site.put("wide", rows=95)
    for turn in range(100):
        site.step()
        site.put(f"next{turn}", tokens=10)
        site.board()
        if wide.started_s:
            break
    # Passed for 50 ms; what runs then ends within its rounds, two steps each.
    assert wide.started_s <= 0.05 + 0.01 * 2 * (ROUNDS + 2)


def test_fixed_groups_run_to_their_end_in_step() -> None:
    site = Site()
    for name, tokens in (("a", 100), ("b", 150)):
        site.put(name, tokens)
    site.board()
    site.put("c")
    while site.wave.riders:
        assert site.board() == []
        site.step()
    assert site.backend.calls == [
        ("prefill", "a", "b"),
        ("prefill", "b"),
        ("prefill", "b"),
        *[("round", "a", "b")] * ROUNDS,
    ]


def test_continuous_requests_join_between_rounds_and_prompts_are_cut_in_chunks() -> None:
    site = Site(scheduling="continuous")
    site.put("a")
    site.board()
    site.step()
    site.put("b", 250)
    assert site.board() == ["b"]
    site.run()
    assert site.backend.calls == [
        ("prefill", "a"),
        ("round", "a"),
        ("prefill", "b"),
        ("round", "a"),
        ("prefill", "b"),
        ("round", "a"),
        ("prefill", "b"),
        *[("round", "b")] * ROUNDS,
    ]


def test_expired_and_cancelled_requests_are_never_computed() -> None:
    site = Site(step_s=0.01)
    late, gone, fine = site.put("late", deadline_s=0.005), site.put("gone"), site.put("fine")
    gone.cancel()
    site.clock.advance(0.006)
    assert site.board() == ["fine"]
    assert isinstance(late.exception(), GenerateDeadlineError)
    site.run()
    assert fine.result() == "answer of fine"
    assert {name for _, *names in site.backend.calls for name in names} == {"fine"}


def test_deadlines_are_looked_at_before_every_round_and_memory_is_free_before_it() -> None:
    site = Site(step_s=0.01)
    short, fine = site.put("short", deadline_s=0.015), site.put("fine", rows=10)
    site.board()
    used: list[tuple[str, int]] = []
    site.backend.before = lambda what: used.append((what, site.backend.used))
    site.run()
    assert isinstance(short.exception(), GenerateDeadlineError)
    assert fine.result() == "answer of fine"
    assert [call for call in site.backend.calls if "short" in call] == [("prefill", "short", "fine")]
    assert used[-1] == ("round", 1)
    assert site.backend.used == 0


def test_a_bad_request_fails_alone_and_a_failed_step_fails_its_group_only() -> None:
    site = Site()
    jobs = {name: site.put(name, tokens=20, poison=name) for name in ("need", "seat", "prefill", "round")}
    good = site.put("good", tokens=20)
    site.board()
    site.run()
    assert good.result() == "answer of good"
    assert all(job.exception() is not None for job in jobs.values())
    assert all(job.ask.closed for job in jobs.values())
    next_one = site.put("next")
    site.backend.failure = MemoryError("no memory")
    site.clock.advance(1)
    site.board()
    site.run()
    error = next_one.exception()
    assert isinstance(error, InternalError)
    assert error.request_id == "next"
    assert site.backend.used == site.backend.seats == 0


def test_the_line_counts_only_who_is_waited_for() -> None:
    site = Site(queue_max=2)
    first = site.put("a")
    site.put("b")
    assert not site.line.put(GenerateJob(FakeAsk("c"), 1.0, 0.0))
    first.cancel()
    assert site.line.put(GenerateJob(FakeAsk("c"), 1.0, 0.0))
    assert len(site.line) == 2
    assert site.line.sweep() == [first]
