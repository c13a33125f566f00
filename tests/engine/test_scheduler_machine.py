"""Random lives of a scheduler: every call of the engine as a plain model predicts it, and real load."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from engine_models import dense_logits, events, make_engine
from scheduler_fakes import (
    PAGE,
    PATIENCE_S,
    Ears,
    FakeEngine,
    at_rest,
    await_true,
    user,
)

from patience import started_threads
from relaygr.config.settings import SchedulerConfig
from relaygr.core.clock import ManualClock
from relaygr.core.errors import CancelledError, DeadlineError, OverloadError
from relaygr.core.ids import Fingerprint
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.requests import RankRequest
from relaygr.engine.scheduler import Scheduler

NAMES = ("a", "b", "c", "d", "e")
SETTINGS = SchedulerConfig(
    rank_batch_max=2, rank_batch_tokens=60, rank_queue_max=4, prefix_queue_max=3, chunk_tokens=PAGE
)


@dataclass(eq=False)
class Wait:
    """What the model knows of a job."""

    job: RankJob | Flight
    name: str
    tokens: int
    urgent_s: float
    arrival: int
    missing: int = 0
    signals: int = 1  # of this history or a newer one
    outcome: type[Exception] | None = None
    ended: bool = False

    @property
    def urgency(self) -> tuple[float, int]:
        return self.urgent_s, self.arrival

    def end(self, outcome: type[Exception] | None) -> None:
        if not self.ended:
            self.ended, self.outcome = True, outcome


@dataclass
class Model:
    """The rules of the scheduler, over lists."""

    engine: FakeEngine
    ranks: list[Wait] = field(default_factory=list)
    flights: list[Wait] = field(default_factory=list)
    cached: dict[FakeEngine, dict[str, int]] = field(default_factory=dict)
    running: tuple[FakeEngine, list[Wait], Wait | None, tuple[int, int]] | None = None

    def of(self, engine: FakeEngine, name: str, tokens: int) -> int:
        return min(self.cached.setdefault(engine, {}).get(name, 0), tokens)

    def waiting(self, jobs: list[Wait]) -> list[Wait]:
        return sorted((one for one in jobs if not one.ended), key=lambda one: one.urgency)

    def everything(self) -> list[Wait]:
        running = [] if self.running is None else [*self.running[1], self.running[2]]
        return [one for one in (*self.ranks, *self.flights, *running) if one is not None and not one.ended]

    def complete(self) -> None:
        """The running call returns."""
        assert self.running is not None
        engine, batch, flight, (tokens, signals) = self.running
        self.running = None
        cached = self.cached.setdefault(engine, {})
        for one in batch:
            cached[one.name] = max(cached.get(one.name, 0), one.tokens)
            one.end(None)
        if flight is not None:
            upto = min(self.of(engine, flight.name, tokens) + PAGE, tokens)
            cached[flight.name] = max(cached.get(flight.name, 0), upto)
            if upto < tokens or flight.signals != signals or engine is not self.engine:
                self.flights.append(flight)
            else:
                flight.end(None)

    def next_call(self) -> tuple[object, ...] | None:
        """What the executor does now that it is free."""
        self.ranks, self.flights = self.waiting(self.ranks), self.waiting(self.flights)
        batch: list[Wait] = []
        while self.ranks and len(batch) < SETTINGS.rank_batch_max:
            computed = sum(one.missing for one in (*batch, self.ranks[0]))
            if batch and computed > SETTINGS.rank_batch_tokens:
                break
            batch.append(self.ranks.pop(0))
        if batch:
            self.running = self.engine, batch, None, (0, 0)
            return ("rank", *(one.name for one in batch))
        if self.flights:
            flight = self.flights.pop(0)
            self.running = self.engine, [], flight, (flight.tokens, flight.signals)
            cached = self.of(self.engine, flight.name, flight.tokens)
            return ("step", flight.name, min(cached + PAGE, flight.tokens))
        return None


class Life:
    """A scheduler whose engine is always held in the middle of a call, or idle."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.clock, self.ears, self.arrivals = ManualClock(), Ears(), 0
        self.model = Model(self._new_engine(0))
        self.scheduler = Scheduler(self.model.engine, SETTINGS, self.clock, self.ears)  # type: ignore[arg-type]
        self.all: list[Wait] = []
        self.refused: set[str] = set()

    @staticmethod
    def _new_engine(number: int) -> FakeEngine:
        engine = FakeEngine(number)
        engine.hold()
        return engine

    def step(self) -> None:
        name = self.rng.choice(
            ["rank", "prefix", "go", "cancel", "advance", "forget", "swap"],
            p=[0.28, 0.26, 0.3, 0.06, 0.04, 0.04, 0.02],
        )
        getattr(self, f"_{name}")(str(self.rng.choice(NAMES)))
        waiting = [one for one in self.all if not one.ended]
        assert [one.job for one in waiting] == [one.job for one in self.all if one.job.waiting]
        load = self.scheduler.load()
        assert load.busy is (self.model.running is not None)
        assert load.ranks == len(self.model.waiting(self.model.ranks))
        assert load.flights == len(self.model.waiting(self.model.flights))

    def _draw(self) -> tuple[int, float, float]:
        tokens, deadline_ms = int(self.rng.integers(0, 60)), float(self.rng.choice([1000, 2000, 3000]))
        return tokens, deadline_ms, self.clock.now_s() + deadline_ms / 1000

    def _remember(self, one: Wait, queue: list[Wait]) -> None:
        self.all.append(one)
        queue.append(one)
        if self.model.running is None:
            self._await_next()

    def _rank(self, name: str) -> None:
        tokens, deadline_ms, deadline_s = self._draw()
        request = RankRequest(user(name, tokens), [1])
        if len(self.model.waiting(self.model.ranks)) == SETTINGS.rank_queue_max:
            with pytest.raises(OverloadError):
                self.scheduler.rank(request, deadline_ms)
            self.refused.add("rank")
            return
        missing = tokens - self.model.of(self.model.engine, name, tokens)
        job = self.scheduler.rank(request, deadline_ms)
        self.arrivals += 1
        self._remember(Wait(job, name, tokens, deadline_s, self.arrivals, missing), self.model.ranks)

    def _prefix(self, name: str) -> None:
        tokens, deadline_ms, deadline_s = self._draw()
        answer = self.scheduler.prefix(user(name, tokens), deadline_ms)
        model = self.model
        on_its_way = [one for one in model.everything() if one.name == name and isinstance(one.job, Flight)]
        if model.of(model.engine, name, tokens) == tokens:
            assert answer.admission == "hit"
        elif on_its_way:
            [flight] = on_its_way
            assert (answer.admission, answer.flight) == ("joined", flight.job)
            flight.signals += tokens >= flight.tokens
            flight.tokens = max(flight.tokens, tokens)
            flight.urgent_s = min(flight.urgent_s, deadline_s)
        elif len(model.waiting(model.ranks)) > SETTINGS.rank_batch_max:
            assert answer.reason == "load"
        elif len(model.waiting(model.flights)) >= SETTINGS.prefix_queue_max:
            assert answer.reason == "queue_full"
        else:
            assert answer.admission == "admitted"
            assert answer.flight is not None
            self.arrivals += 1
            self._remember(Wait(answer.flight, name, tokens, deadline_s, self.arrivals), model.flights)
        self.refused.add(answer.reason)

    def _go(self, _: str) -> None:
        running = self.model.running
        if running is not None:
            self.model.complete()
            running[0].go()
            self._await_next()

    def _await_next(self) -> None:
        """The next call begins, as predicted; or there is none, and the executor rests."""
        engine = self.model.engine
        call = self.model.next_call()
        if call is None:
            await_true(lambda: not self.scheduler.load().busy)
            return
        engine.await_call()
        assert engine.calls[-1] == call

    def _cancel(self, _: str) -> None:
        waiting = [one for one in self.all if not one.ended]
        if waiting:
            one = waiting[int(self.rng.integers(len(waiting)))]
            assert one.job.future.cancel()
            one.end(CancelledError)

    def _advance(self, _: str) -> None:
        self.clock.advance(0.5)
        self.scheduler._timer.fire()
        now = self.clock.now_s()
        due = [one for one in self.all if not one.ended and one.job.deadline_s <= now]
        await_true(lambda: not any(one.job.waiting for one in due))
        for one in due:
            one.end(DeadlineError)

    def _forget(self, name: str) -> None:
        running = self.model.running
        doomed = [one for one in self.model.everything() if one.name == name]
        # A running job leaves an entry even if it was cancelled before.
        batch = [] if running is None else [*running[1], running[2]]
        works = any(one is not None and one.name == name for one in batch)
        thread = threading.Thread(target=self.scheduler.forget, args=("default", name))
        thread.start()
        await_true(lambda: not any(one.job.waiting for one in doomed))
        for one in doomed:
            one.end(CancelledError)
        if works:
            assert thread.is_alive()
            self._go(name)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        for engine in {self.model.engine, *([running[0]] if running is not None else [])}:
            assert name not in engine.tokens
            self.model.cached.setdefault(engine, {}).pop(name, None)

    def _swap(self, _: str) -> None:
        engine = self._new_engine(self.model.engine.number + 1)
        assert self.scheduler.swap(engine) is self.model.engine  # type: ignore[arg-type]
        self.model.engine = engine

    def finish(self) -> None:
        while self.model.running is not None:
            self._go("")
        await_true(lambda: at_rest(self.scheduler))
        assert self.scheduler.drain(PATIENCE_S)
        for one in self.all:
            got = one.job.future.exception(0)
            assert type(got) is (one.outcome or type(None)), one
        ranked = [one.job for one in self.all if one.outcome is None and isinstance(one.job, RankJob)]
        assert sorted(map(id, self.ears.results)) == sorted(map(id, ranked))
        assert len(self.ears.errors) == sum(one.outcome is not None for one in self.all)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_life_runs_as_predicted(seed: int) -> None:
    life = Life(seed)
    for _ in range(1000):
        life.step()
    life.finish()
    assert life.refused >= {"rank", "load", "queue_full"}
    assert len(life.ears.results) > 100
    assert {kind for kind, _ in life.ears.errors} == {"rank", "prefix"}


def numbered_engine(number: int) -> Engine:
    """With weights and a fingerprint of its own."""
    engine = make_engine(seed=number)
    engine.model_fp = engine._checker._model_fp = Fingerprint(number.to_bytes(16, "big"))
    return engine


@dataclass
class Caller:
    """One of several threads that use a real engine: its own users, whose histories grow or are deleted."""

    number: int
    scheduler: Scheduler
    engines: list[Engine]
    jobs: list[tuple[RankRequest, Future[Any]]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    failure: BaseException | None = None

    def run(self, operations: int) -> None:
        try:
            self._live(np.random.default_rng(self.number), operations)
        except BaseException as failure:  # noqa: BLE001
            self.failure = failure

    def _live(self, rng: np.random.Generator, operations: int) -> None:
        users = {f"u{self.number}-{i}": UserHistory(f"u{self.number}-{i}", [], []) for i in range(10)}
        shared = UserHistory("shared", *events(140, 99))
        for _ in range(operations):
            name = str(rng.choice(list(users)))
            one = users[name]
            action = rng.choice(
                ["append", "rank", "prefix", "cancel", "expire", "forget", "swap", "shared"],
                p=[0.25, 0.35, 0.2, 0.06, 0.05, 0.05, 0.01, 0.03],
            )
            if action == "append":
                last = int(one.timestamps[-1]) if len(one) else 1_700_000_000
                users[name] = one.append(*events(int(rng.integers(0, 40)), int(rng.integers(1 << 30)), last))
            elif action == "prefix":
                self.scheduler.prefix(one)
                self.deleted.discard(name)
            elif action == "swap":
                self.engines.append(numbered_engine(len(self.engines) * 4 + self.number))
                self.scheduler.swap(self.engines[-1])
            elif action == "forget":
                self.scheduler.forget("default", name)
                users[name] = UserHistory(name, [], [])
                self.deleted.add(name)
            else:
                self._rank(shared if action == "shared" else one, str(action), rng)
                self.deleted.discard(name)
            if len(self.jobs) % 10 == 9:
                wait([job for _, job in self.jobs[-10:]], PATIENCE_S)

    def _rank(self, one: UserHistory, action: str, rng: np.random.Generator) -> None:
        request = RankRequest(one, rng.integers(0, 50, int(rng.integers(0, 8))))
        job = self.scheduler.rank(request, 1.0 if action == "expire" else None)
        if action == "cancel":
            job.future.cancel()
        self.jobs.append((request, job.future))


def test_two_thousand_operations_of_several_threads_over_real_engines() -> None:
    engines = [numbered_engine(0)]
    ears, started = Ears(), started_threads()
    scheduler = Scheduler(engines[0], SchedulerConfig(rank_batch_max=8, chunk_tokens=32), observer=ears)
    callers = [Caller(number, scheduler, engines) for number in range(4)]
    threads = [threading.Thread(target=caller.run, args=(500,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [caller.failure for caller in callers] == [None] * 4
    jobs = [job for caller in callers for job in caller.jobs]
    assert not wait([future for _, future in jobs], PATIENCE_S).not_done
    await_true(lambda: at_rest(scheduler))
    assert scheduler.drain(PATIENCE_S)
    assert not started()

    ended = [type(future.exception(0)) for _, future in jobs]
    assert set(ended) <= {type(None), CancelledError, DeadlineError}
    assert ended.count(type(None)) > 600
    assert len(ears.results) == ended.count(type(None))
    answered = [(one, future.result(0)) for one, future in jobs if future.exception(0) is None]
    by_model = {engine.model_fp: engine for engine in engines}
    assert len({answer.served.model for _, answer in answered}) > 3
    for one, answer in answered[::9]:
        want = dense_logits(by_model[answer.served.model], one)
        assert answer.logits.shape == want.shape
        assert np.abs(answer.logits - want).max(initial=0) <= 1e-5
    for engine in engines:
        stats = engine.cache_stats()
        assert (stats.leases, stats.pinned_pages) == (0, 0)
        engine._tiers.books.audit()
    held = scheduler.engine._tiers.books._index._of_user
    assert not [name for caller in callers for name in caller.deleted if ("default", name) in held]
    assert any(caller.deleted for caller in callers)
