"""What waits for the engine, each answered exactly once; its turns; what a scheduler is given and tells."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from relaygr.core.clock import Clock
from relaygr.core.errors import BackendError, CancelledError, DeadlineError, RelayError
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import PrefetchResult, RankRequest, RankResult
from relaygr.engine.signals import Signal
from relaygr.engine.tiers import Readable

log = logging.getLogger("relaygr.engine")

Answer = TypeVar("Answer")


class Admission(StrEnum):
    """What became of a prefix signal."""

    ADMITTED = "admitted"  # queued
    HIT = "hit"  # everything is in the cache already
    JOINED = "joined"  # the same prefix is on its way
    REJECTED = "rejected"


class Job(Future[Answer], Generic[Answer]):
    """One caller's wait: a future that ends in exactly one answer or one RelayError, whoever comes first.

    It may be awaited through `asyncio.wrap_future`; cancelling it there, or with `cancel`, ends it in
    CancelledError. It being the future itself leaves no cycle of references, so that answers are freed
    when their callers let go.

    Attributes:
        deadline_s: on the scheduler's clock; an answer later than this is of no use.
        urgent_s: the deadline by which it is placed in its queue.
        queued_s: when it came; `started_s`, `done_s`: when its work began and ended, 0 before.
        arrival: its number in the queue, which decides among equal deadlines; 0 before.
        rush: lower goes first, whatever the deadlines.
    """

    rush = 0

    def __init__(self, deadline_s: float, queued_s: float) -> None:
        super().__init__()
        self.deadline_s = self.urgent_s = deadline_s
        self.queued_s = queued_s
        self.started_s = self.done_s = 0.0
        self.arrival = 0
        self._once = threading.Lock()
        self._answered = False

    @property
    def future(self) -> Future[Answer]:
        """What to wait for."""
        return self

    @property
    def waiting(self) -> bool:
        """Whether anybody still wants the answer."""
        return not self._answered

    def resolve(self, answer: Answer | RelayError) -> bool:
        """Give the answer; False if there was one already."""
        with self._once:
            if self._answered:
                return False
            self._answered = True
        # Outside of the lock, because this runs the callbacks of whoever waits.
        if isinstance(answer, RelayError):
            self.set_exception(answer)
        else:
            self.set_result(answer)
        return True

    def cancel(self, reason: str = "the caller gave up") -> bool:
        """End the wait; work that has not begun never will."""
        return self.resolve(CancelledError(reason))

    def expire(self) -> bool:
        """End the wait because the deadline passed."""
        limit_ms = (self.deadline_s - self.queued_s) * 1000
        return self.resolve(DeadlineError(f"there was no answer within {limit_ms:.0f} ms"))


class RankJob(Job[RankResult]):
    """A request to score.

    Attributes:
        budget_s: when it should be answered: from then on less history is read; the deadline or earlier.
        tokens, cached: its history tokens, and how many of them were cached when last looked at.
        kept_events: of its history, the newest that were scored where that was not all of it, to be in time;
            None for all. Without any it is scored as a user of whom nothing is known.
        signal: that announced it; None without one.
        found: what the tiers had of its history when the user came: at the signal, or without one now.
        entered: whether its claim on a prefix has been used, or given back.
    """

    def __init__(
        self, request: RankRequest, deadline_s: float, queued_s: float, tokens: int = 0, cached: int = 0
    ) -> None:
        super().__init__(deadline_s, queued_s)
        self.request, self.tokens, self.cached = request, tokens, cached
        self.budget_s = deadline_s
        self.kept_events: int | None = None
        self.signal: Signal | None = None
        self.found = Readable(cached, 0)
        self.entered = False

    @property
    def truncated(self) -> bool:
        """Whether it was scored with less history than it has."""
        return self.kept_events is not None

    @property
    def degraded(self) -> bool:
        """Whether it was scored without any of its history."""
        return self.kept_events == 0

    @property
    def missing(self) -> int:
        """History tokens to compute."""
        return self.tokens - self.cached

    @property
    def owner(self) -> tuple[str, str]:
        return self.request.history.tenant, self.request.history.user

    def shortened(self, events: int) -> RankRequest:
        """Its request over the newest `events` events only."""
        whole = self.request
        # A part of the history is another prefix: it must not take the place of the whole one in the cache.
        return RankRequest(whole.history.newest(events), whole.candidates, whole.query_time, keep=False)


class Flight(Job[PrefetchResult]):
    """A prefix on its way into the cache, step by step; later signals of the same user join it.

    It is one wait for all of them: as urgent as the earliest of their deadlines, alive until the latest;
    cancelling it ends it for all.

    Attributes:
        history: the newest one that was signalled.
        reloading: the host has more of it than the device: that is copied before anything is computed;
            reloaded: some of it was.
        fetching: the disk has more of it than the host: that is read before anything else; fetched: it was.
        steps, computed: steps done, and history tokens they computed; last_step: what the last one did.
        spent_s, reload_s: time of its steps, and of its copies before them.
        left_ms: an estimate of what is still to be computed.
    """

    def __init__(
        self, history: UserHistory, deadline_s: float, queued_s: float, reloading: bool = False
    ) -> None:
        super().__init__(deadline_s, queued_s)
        self.history, self.reloading = history, reloading
        self.reloaded = self.fetching = self.fetched = False
        self.steps = self.computed = 0
        self.last_step: PrefetchResult | None = None
        self.spent_s = self.left_ms = self.reload_s = 0.0

    @property
    def rush(self) -> int:  # type: ignore[override]
        return 2 if self.fetching else 0 if self.reloading else 1  # who waits for the disk stops nobody

    @property
    def owner(self) -> tuple[str, str]:
        return self.history.tenant, self.history.user

    @property
    def useful_s(self) -> float:
        """When others must have brought it: at the deadline, or when it would have been computed."""
        return min(self.deadline_s, self.queued_s + (self.left_ms / 1000 or float("inf")))

    def stepped(self, served: PrefetchResult, seconds: float) -> None:
        """Note what a step did, and how long it took."""
        self.steps += 1
        self.last_step = served
        self.spent_s += seconds
        self.computed += served.tokens_computed
        left = served.tokens_left
        self.left_ms *= left / max(left + served.tokens_computed, 1)


ChunkTokens = Callable[[int, int], int]
"""History tokens of one prefetch step behind so many cached ones, of so many that are left."""


Fit = Callable[[RankJob, float], int]
"""Newest events of a job's history that can be scored within so many milliseconds.

As many as the model reads, or more, leave the history whole: `job.cached` of its tokens are free then,
whereas a part of it is computed from its beginning.
"""


Cost = Callable[[RankJob], float]
"""Milliseconds that scoring a job will take; 0 if that is not known."""


class Observer(Protocol):
    """Hears what the scheduler does, on whatever thread did it; must be quick. What it raises is logged."""

    def ranked(self, job: RankJob, result: RankResult) -> None:
        """A rank job has its result; called once, instead of `failed`."""

    def stepped(self, flight: Flight, seconds: float) -> None:
        """A step of a prefetch took so long."""

    def failed(self, kind: str, error: RelayError) -> None:
        """A "rank" or "prefix" that had been queued ended in an error; expired and cancelled ones too."""


@dataclass(frozen=True, slots=True)
class PrefixAnswer:
    """What became of a prefix signal, and its flight if there is one to wait for."""

    admission: Admission
    reason: str
    tokens: int
    cached: int
    flight: Flight | None


@dataclass(frozen=True, slots=True)
class Load:
    """What waits and runs now."""

    ranks: int
    flights: int
    busy: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """What the executor does at one time, with one model: a rank batch, or a step of a flight."""

    engine: Engine
    batch: list[RankJob]
    flight: Flight | None
    share_ms: float = float("inf")  # what the first job of the batch may take

    def jobs(self) -> set[RankJob | Flight]:
        return {*self.batch, *(() if self.flight is None else (self.flight,))}

    def spares(self, doomed: set[RankJob | Flight]) -> bool:
        """Whether nothing of these is done now; it is not known for whom chores are."""
        jobs = self.jobs()
        return bool(jobs) and doomed.isdisjoint(jobs)

    def rank(self, clock: Clock, fit: Fit | None) -> None:
        """Answer every job of the batch that somebody waits for."""
        started = clock.now_s()
        jobs: list[RankJob] = []
        requests: list[RankRequest] = []
        for job in self.batch:
            if not job.waiting:
                continue
            job.started_s = started
            request = guarded("fitting a request", partial(self._fitted, job, fit, clock))
            if isinstance(request, RelayError):
                job.resolve(request)
                continue
            jobs.append(job)
            requests.append(request)
        answers = guarded("a rank batch", partial(self._answers, requests))
        if isinstance(answers, RelayError):
            # The engine answers each request for itself, so that this is nobody's own error.
            answers = [BackendError(f"the batch failed: {answers}") for _ in jobs]
        done = clock.now_s()
        for job, answer in zip(jobs, answers, strict=True):
            job.done_s = done
            job.resolve(answer)

    def step(self, history: UserHistory, chunk: ChunkTokens) -> PrefetchResult | RelayError:
        """Bring some more of the history into the cache."""
        return guarded("a prefetch step", partial(self._stepped, history, chunk))

    def _fitted(self, job: RankJob, fit: Fit | None, clock: Clock) -> RankRequest:
        """The job's request, with less history if all of it cannot be read before the deadline."""
        end_s = job.budget_s if job.budget_s > job.started_s else job.deadline_s
        # A load may take half of the time that is left; the other half is for what is done without it.
        job.request.load_by_s = (job.started_s + end_s) / 2
        if fit is None:
            return job.request
        job.request.otherwise = partial(self._without_host, job, fit, clock)
        job.tokens, found = self.engine.locate(job.request)  # its prefix may have come, or gone, meanwhile
        job.cached = found.near
        if found.host > found.device and not self.engine.loads_in_time(found, job.request.load_by_s):
            job.cached = found.device
        left_ms = (job.budget_s - job.started_s) * 1000
        if job is self.batch[0]:
            left_ms = min(left_ms, self.share_ms)
        return self._cut(job, fit, left_ms)

    def _without_host(self, job: RankJob, fit: Fit, clock: Clock) -> RankRequest:
        """What is scored if the host cannot give the prefix after all: what the time left allows."""
        job.tokens, found = self.engine.locate(job.request)
        job.cached = found.device
        return self._cut(job, fit, (job.budget_s - clock.now_s()) * 1000)

    def _cut(self, job: RankJob, fit: Fit, left_ms: float) -> RankRequest:
        """The job's request with as much history as can be read in so long."""
        if not job.missing:
            return job.request
        events, shape = fit(job, left_ms), self.engine.model_config
        if events >= len(job.request.history) or shape.prefix_tokens(events) >= job.tokens:
            return job.request
        job.kept_events = events
        return job.shortened(events)

    def _answers(self, requests: list[RankRequest]) -> list[RankResult | RelayError]:
        answers = self.engine.rank_batch(requests) if requests else []
        if len(answers) != len(requests):
            raise BackendError(f"{len(answers)} answers to {len(requests)} requests")
        return answers

    def _stepped(self, history: UserHistory, chunk: ChunkTokens) -> PrefetchResult:
        tokens, cached = self.engine.peek(RankRequest(history, ()))
        return self.engine.prefetch_chunk(history, max(chunk(cached, max(tokens - cached, 1)), 1))


def tell(observer: Observer, job: Future[Any]) -> None:
    """Report how a job ended."""
    error = job.exception()
    if isinstance(error, RelayError):
        observer.failed("rank" if isinstance(job, RankJob) else "prefix", error)
    elif isinstance(job, RankJob):
        observer.ranked(job, job.result())


def guarded(what: str, work: Callable[[], Answer]) -> Answer | RelayError:
    """What `work` returns, or the error it ends in: nothing ends the executor."""
    try:
        return work()
    except RelayError as error:
        return error
    except Exception as error:
        log.exception("%s failed", what)
        return BackendError(f"{what} failed: {type(error).__name__}: {error}")
