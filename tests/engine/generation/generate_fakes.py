"""A backend that only counts, on a clock that its steps move; it can be held, and fails when told to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from patience import PATIENCE_S, await_true, started_threads
from relaygr.config.generator import GeneratorConfig
from relaygr.core.clock import Clock, ManualClock
from relaygr.core.errors import BackendError, RelayError, RequestError
from relaygr.engine.generation.interface import Need, Step, StepKind
from relaygr.engine.generation.jobs import GenerateJob
from relaygr.engine.generation.scheduler import GenerateScheduler
from relaygr.generation.errors import TooLongError

CHUNK = 100  # prompt tokens of one step
ROUNDS = 3


@dataclass
class FakeAsk:
    """A request of so many tokens and rows; `poison` says which call fails for it."""

    request_id: str
    tokens: int = 100
    rows: int = 10
    owner: tuple[str, str] = ("default", "")
    deadline_ms: float | None = None
    poison: str = ""
    nbytes: int = 1
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeSeat:
    backend: FakeBackend
    ask: FakeAsk
    left: int
    rounds: int = 0
    outcome: object | None = None
    closed: bool = False

    @property
    def prefilled(self) -> bool:
        return self.left <= 0

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.backend.used -= self.ask.nbytes
            self.backend.seats -= 1


@dataclass
class FakeBackend:
    """Steps take `step_s` of a manual clock; `memory` bounds the bytes of all seats.

    Attributes:
        calls: ("prefill" | "round" | "encode", request ids...), in order.
    """

    clock: Clock = field(default_factory=ManualClock)
    step_s: float = 0.0
    memory: int = 1 << 30
    used: int = 0
    seats: int = 0
    calls: list[tuple[str, ...]] = field(default_factory=list)
    failure: BaseException | None = None
    chores: int = 0
    asks: list[FakeAsk] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._permits: threading.Semaphore | None = None
        self.before: Callable[[str], None] | None = None

    def hold(self) -> None:
        self._permits = threading.Semaphore(0)

    def go(self, calls: int = 1) -> None:
        assert self._permits is not None
        self._permits.release(calls)

    def release(self) -> None:
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.release(10_000)

    def await_call(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_S)

    def check(self, request: FakeAsk) -> FakeAsk:
        if request.poison == "check":
            raise TooLongError(request.request_id, "is too long", field="token_ids", limit=1)
        self.asks.append(request)
        return request

    def need(self, ask: FakeAsk) -> Need:
        if ask.poison == "need":
            raise ZeroDivisionError("need")
        return Need(ask.tokens, ask.rows)

    def seat(self, ask: FakeAsk) -> FakeSeat | None:
        if ask.poison == "seat":
            raise RequestError("history", "is bad")
        if self.used + ask.nbytes > self.memory:
            return None
        self.used += ask.nbytes
        self.seats += 1
        return FakeSeat(self, ask, ask.tokens)

    def prefill(self, seats: Sequence[FakeSeat]) -> Step:
        self._call("prefill", *(seat.ask.request_id for seat in seats))
        budget = CHUNK
        for seat in seats:
            took = min(budget, seat.left)
            seat.left -= took
            budget -= took
            if seat.ask.poison == "prefill":
                seat.outcome = BackendError("prefill")
        return Step(StepKind.PREFILL, len(seats), tokens=CHUNK - budget)

    def round(self, seats: Sequence[FakeSeat]) -> Step:
        assert all(seat.prefilled and seat.outcome is None for seat in seats)
        self._call("round", *(seat.ask.request_id for seat in seats))
        for seat in seats:
            seat.rounds += 1
            if seat.ask.poison == "round":
                seat.outcome = BackendError("round")
            elif seat.rounds == ROUNDS:
                seat.outcome = f"answer of {seat.ask.request_id}"
        return Step(StepKind.ROUND, len(seats), rows=sum(seat.ask.rows for seat in seats))

    def encode(self, ask: FakeAsk) -> tuple[Step, object | None]:
        self._call("encode", ask.request_id)
        ask.tokens -= CHUNK
        return Step(StepKind.ENCODE, 1, tokens=CHUNK), (None if ask.tokens > 0 else "encoded")

    def chore(self) -> bool:
        self.chores += 1
        return False

    def forget(self, tenant: str, user: str) -> int:
        self.forgotten.append(user)
        return 1

    def _call(self, *call: str) -> None:
        self.calls.append(call)
        self.entered.release()
        if self._permits is not None:
            assert self._permits.acquire(timeout=PATIENCE_S)
        if isinstance(self.clock, ManualClock):
            self.clock.advance(self.step_s)
        elif self.step_s:
            time.sleep(self.step_s)
        if self.before is not None:
            self.before(call[0])
        if self.failure is not None:
            raise self.failure


@dataclass
class Listener:
    """An observer that remembers."""

    waves: list[tuple[int, int, int, int, float]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    errors: list[tuple[str, RelayError]] = field(default_factory=list)

    def started(self, *told: Any) -> None:
        self.waves.append(told)

    def stepped(self, step: Step) -> None:
        self.steps.append(step)

    def ended(self, job: GenerateJob[Any], answer: object) -> None:
        assert job.result() is answer
        self.answers.append(answer)

    def failed(self, kind: str, error: RelayError) -> None:
        self.errors.append((kind, error))


@contextlib.contextmanager
def scheduling(backend: FakeBackend, **settings: Any) -> Iterator[GenerateScheduler]:
    """Closed behind, with all of its threads."""
    started = started_threads()
    more = {name: settings.pop(name) for name in ("observer", "turns") if name in settings}
    config = GeneratorConfig(**{"max_beam_width": 100, "beam_width": 10, "max_beam_rows": 100, **settings})
    scheduler = GenerateScheduler(backend, config, backend.clock, **more)
    try:
        yield scheduler
    finally:
        backend.release()
        scheduler.close()
        await_true(lambda: not started())
