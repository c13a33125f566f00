"""An engine that only counts, can be held at any call, and fails when told to; an observer that listens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from patience import PATIENCE_S, await_true, started_threads
from relaygr.config.settings import SchedulerConfig
from relaygr.core.errors import RelayError, RequestError
from relaygr.core.ids import Fingerprint
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.requests import Path, PrefetchResult, RankRequest, RankResult
from relaygr.engine.scheduler import Scheduler
from relaygr.engine.tiers import Readable

PAGE = 10


def user(name: str, events: int = 0, first: int = 0, **kwargs: Any) -> UserHistory:
    times = np.arange(events) + 1_700_000_000
    return UserHistory(name, np.arange(events) + first, times, **kwargs)


def request(name: str, events: int = 0, **kwargs: Any) -> RankRequest:
    return RankRequest(user(name, events), [1, 2], **kwargs)


class FakeEngine:
    """One token an event; a step computes whole pages of `PAGE` tokens. Its scores are its number.

    Attributes:
        calls: what it was called with: ("rank", user, ...) or ("step", user, tokens cached afterwards).
        tokens: what is cached, by user.
    """

    def __init__(self, number: int = 0, cacheable: str = "append", batch: int = 64) -> None:
        self.model_fp = Fingerprint(bytes([number]) * 16)
        self.model_config = SimpleNamespace(cacheable=cacheable, prefix_tokens=lambda events: events)
        self.config = SimpleNamespace(max_batch_requests=batch)
        self.number, self.room = number, 1 << 30
        self.calls: list[tuple[object, ...]] = []
        self.requests: list[RankRequest] = []
        self.tokens: dict[str, int] = {}
        self.failure: BaseException | None = None
        self.entered = threading.Semaphore(0)
        self._permits: threading.Semaphore | None = None
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Block every call from now on until `go` or `release`."""
        self._permits = threading.Semaphore(0)

    def go(self, calls: int = 1) -> None:
        assert self._permits is not None
        self._permits.release(calls)

    def release(self) -> None:
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.release(1000)

    def await_call(self) -> None:
        """Until one more call has begun."""
        assert self.entered.acquire(timeout=PATIENCE_S)

    def peek(self, request: RankRequest) -> tuple[int, int]:
        if request.history.user.startswith("misfit"):
            raise RequestError("contextual", "does not fit")
        tokens = len(request.history)
        return tokens, min(self.tokens.get(request.history.user, 0), tokens)

    def locate(self, request: RankRequest) -> tuple[int, Readable]:
        tokens, cached = self.peek(request)
        return tokens, Readable(cached, 0)

    def rank_batch(self, requests: Sequence[RankRequest]) -> list[RankResult | RelayError]:
        assert len(requests) <= self.config.max_batch_requests
        self._call("rank", *(request.history.user for request in requests))
        self.requests += requests
        return [self._answer(request) for request in requests]

    def prefetch_chunk(self, history: UserHistory, limit_tokens: int) -> PrefetchResult:
        cached = min(self.tokens.get(history.user, 0), len(history))
        upto = min(cached + max(limit_tokens // PAGE, 1) * PAGE, len(history))
        self._call("step", history.user, upto)
        resident = upto <= self.room
        if resident:
            self.tokens[history.user] = max(self.tokens.get(history.user, 0), upto)
        return self._served(cached, upto, len(history), resident)

    def forget(self, tenant: str, name: str) -> int:
        """Unlike the real one's, not behind a running call: whoever needs that order has to see to it."""
        return int(self.tokens.pop(name, None) is not None)

    def ranked(self) -> list[object]:
        """Users in the order of ranking."""
        return [name for call in self.calls if call[0] == "rank" for name in call[1:]]

    def _call(self, *call: object) -> None:
        with self._lock:
            self.calls.append(call)
            self.entered.release()
            if self._permits is not None:
                assert self._permits.acquire(timeout=PATIENCE_S)
            if self.failure is not None:
                raise self.failure

    def _answer(self, request: RankRequest) -> RankResult | RelayError:
        if request.history.user.startswith("bad"):
            return RequestError("items", "is bad")
        tokens, cached = self.peek(request)
        if request.keep:
            self.tokens[request.history.user] = max(tokens, self.tokens.get(request.history.user, 0))
        logits = np.full((len(request.candidates), 1), self.number, np.float32)
        return RankResult(("engage",), logits, self._served(cached, tokens, tokens, request.keep))

    def _served(self, cached: int, upto: int, tokens: int, resident: bool) -> PrefetchResult:
        path = Path.FULL if not cached else Path.HIT if cached == upto else Path.RESUMED
        reason = "" if resident else "too_large"
        left = tokens - upto
        return PrefetchResult(path, cached, upto - cached, resident, reason, self.model_fp, tokens_left=left)


@dataclass
class Ears:
    """An observer that remembers."""

    results: list[RankJob] = field(default_factory=list)
    steps: list[tuple[Flight, float]] = field(default_factory=list)
    errors: list[tuple[str, RelayError]] = field(default_factory=list)

    def ranked(self, job: RankJob, result: RankResult) -> None:
        assert job.future.result() is result
        self.results.append(job)

    def stepped(self, flight: Flight, seconds: float) -> None:
        self.steps.append((flight, seconds))

    def failed(self, kind: str, error: RelayError) -> None:
        self.errors.append((kind, error))


@contextlib.contextmanager
def scheduling(engine: Any, *, fit: Any = None, observer: Any = None, **settings: Any) -> Iterator[Scheduler]:
    """A scheduler that is closed behind, with both of its threads."""
    started = started_threads()
    chunk = settings.pop("chunk", None)
    scheduler = Scheduler(engine, SchedulerConfig(**settings), observer=observer, chunk_tokens=chunk, fit=fit)
    try:
        yield scheduler
    finally:
        if isinstance(engine, FakeEngine):
            engine.release()
        scheduler.close()
        await_true(lambda: not started())


def result(job: RankJob) -> RankResult:
    return job.future.result(PATIENCE_S)


def error(job: RankJob | Flight) -> BaseException | None:
    return job.future.exception(PATIENCE_S)


def at_rest(scheduler: Scheduler) -> bool:
    """Whether nothing of any job is held in queues or indexes."""
    ranks, flights = scheduler._ranks, scheduler._flights
    return not (ranks._heap or flights._heap or flights._by_owner or scheduler._turn)
