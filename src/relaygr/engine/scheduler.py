"""Who runs next: ranking before steps of prefetches, earliest deadline first, one executor thread.

A rank request waits for at most one step of a prefetch, plus rank requests that are more urgent. Everything
that waits is bounded; what nobody waits for any more is never computed. Source: `relay.md` section 10.
"""

from __future__ import annotations

import logging
import threading

from relaygr.config.settings import SchedulerConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import BackendError, NotReadyError, OverloadError, RelayError
from relaygr.engine.deadlines import DeadlineTimer
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import (
    Admission,
    ChunkTokens,
    Fit,
    Flight,
    Load,
    Observer,
    PrefixAnswer,
    RankJob,
)
from relaygr.engine.queues import DeadlineQueue
from relaygr.engine.requests import RankRequest, RankResult

log = logging.getLogger("relaygr.engine")

DEFAULT_CHUNK_TOKENS = 256
_RETRY_MS = 50.0  # without timings of what is queued


class Scheduler:
    """Owns the only thread that calls the engine; every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        config: SchedulerConfig | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        chunk_tokens: ChunkTokens | None = None,
        fit: Fit | None = None,
    ) -> None:
        self.config = config or SchedulerConfig()
        self._engine, self._observer, self._fit = engine, observer, fit
        self._clock = clock or MonotonicClock()
        self._chunk = chunk_tokens or (lambda cached: self.config.chunk_tokens or DEFAULT_CHUNK_TOKENS)
        self._ranks: DeadlineQueue[RankJob] = DeadlineQueue(self.config.rank_queue_max)
        self._flights: DeadlineQueue[Flight] = DeadlineQueue(self.config.prefix_queue_max)
        self._by_owner: dict[tuple[str, str], Flight] = {}
        self._change = threading.Condition()
        self._stage: str = "open"  # then "draining", then "closed"
        self._busy = False
        self._timer = DeadlineTimer(self._clock)
        self._thread = threading.Thread(target=self._run, name="relaygr-executor", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        """The engine that the next batch runs on."""
        return self._engine

    def rank(self, request: RankRequest, deadline_ms: float | None = None) -> RankJob:
        """Queue a request; its future ends in a result or a RelayError.

        Raises:
            RequestError: the request does not fit the model or a limit.
            OverloadError: the queue is full.
            NotReadyError: the scheduler is stopping.
        """
        now = self._clock.now_s()
        tokens, cached = self._engine.peek(request)
        deadline_s = now + (deadline_ms or self.config.rank_deadline_ms) / 1000
        job = RankJob(request, deadline_s, now, tokens, cached)
        with self._change:
            self._check_open()
            if not self._ranks.put(job):
                raise OverloadError(
                    f"{self.config.rank_queue_max} rank requests wait already", self._retry_ms()
                )
            self._change.notify_all()
        self._timer.watch(job)
        return job

    def prefix(self, history: UserHistory, deadline_ms: float | None = None) -> PrefixAnswer:
        """Bring a prefix into the cache, step by step, when nothing more urgent runs; answers at once.

        A signal while ranking is queued beyond a whole batch is refused: pre-inference is shed first.

        Raises:
            RequestError: the history does not fit the model.
            NotReadyError: the scheduler is stopping.
        """
        engine, now = self._engine, self._clock.now_s()
        tokens, cached = engine.peek(RankRequest(history, ()))
        if engine.model_config.cacheable != "append":
            return PrefixAnswer(Admission.REJECTED, "not_reusable", tokens, 0, None)
        if cached == tokens:
            return PrefixAnswer(Admission.HIT, "", tokens, cached, None)
        flight = Flight(history, now + (deadline_ms or self.config.prefix_deadline_ms) / 1000, now)
        with self._change:
            self._check_open()
            before = self._by_owner.get(flight.owner)
            if before is not None and before.waiting:
                if history.sequence > before.history.sequence:
                    before.history = history  # what is done of the shorter one is its beginning
                return PrefixAnswer(Admission.JOINED, "", tokens, cached, before)
            if len(self._ranks) > self.config.rank_batch_max:
                return PrefixAnswer(Admission.REJECTED, "load", tokens, cached, None)
            if not self._flights.put(flight):
                return PrefixAnswer(Admission.REJECTED, "queue_full", tokens, cached, None)
            self._by_owner[flight.owner] = flight
            self._change.notify_all()
        flight.future.add_done_callback(lambda _: self._landed(flight))
        self._timer.watch(flight)
        return PrefixAnswer(Admission.ADMITTED, "", tokens, cached, flight)

    def forget(self, tenant: str, user: str) -> int:
        """Drop everything of a user, queued work included; returns the cache entries dropped.

        Waits for the batch that runs now, and returns with nothing of the user held or on its way.
        """
        owner = (tenant, user)
        with self._change:
            for job in (*self._ranks, *self._flights):
                if job.owner == owner:
                    job.cancel("the user was deleted")
            self._by_owner.pop(owner, None)
        # The engine's own lock puts this behind a running batch, whose entry it then drops.
        return self._engine.forget(tenant, user)

    def swap(self, engine: Engine) -> Engine:
        """Use `engine` from the next batch on; returns the one before, which may still finish a batch.

        No batch mixes models. Prefixes on their way start over on the new model.
        """
        with self._change:
            self._check_open()
            before, self._engine = self._engine, engine
        return before

    def load(self) -> Load:
        with self._change:
            return Load(len(self._ranks), len(self._flights), self._busy)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new work, finish what is queued, stop; False if time ran out and the rest was cancelled."""
        with self._change:
            self._stage = "draining"
            for flight in self._flights:
                flight.cancel("the service is stopping")
            self._change.notify_all()
            done = self._change.wait_for(lambda: not self._busy and not len(self._ranks), timeout_s)
            self._stage = "closed"
            for job in (*self._ranks, *self._flights):
                job.resolve(NotReadyError("the service is stopping"))
            self._change.notify_all()
        self._thread.join()
        self._timer.close()
        return done

    def close(self) -> None:
        """Stop at once; what waits ends in NotReadyError."""
        self.drain(0.0)

    def _check_open(self) -> None:
        if self._stage != "open":
            raise NotReadyError("the service is stopping")

    def _retry_ms(self) -> float:
        return _RETRY_MS * max(len(self._ranks) / self.config.rank_batch_max, 1.0)

    def _run(self) -> None:
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(self._has_work)
                if self._stage == "closed":
                    return
                batch, flight, engine = self._next_batch(), None, self._engine
                if not batch:
                    flight = self._flights.take()
                self._busy = True
            if batch:
                self._rank(engine, batch)
            elif flight is not None:
                self._step(engine, flight)

    def _has_work(self) -> bool:
        return self._stage == "closed" or len(self._ranks) > 0 or len(self._flights) > 0

    def _next_batch(self) -> list[RankJob]:
        """The most urgent rank jobs, within the limits of a batch; called with the lock held."""
        wait_s = self.config.rank_batch_wait_ms / 1000
        if wait_s and len(self._ranks):
            self._change.wait_for(lambda: len(self._ranks) >= self.config.rank_batch_max, wait_s)
        batch: list[RankJob] = []
        tokens = 0
        while len(batch) < self.config.rank_batch_max and (job := self._ranks.take()) is not None:
            if batch and tokens + job.missing > self.config.rank_batch_tokens:
                self._ranks.back(job)
                break
            tokens += job.missing
            batch.append(job)
        return batch

    def _rank(self, engine: Engine, batch: list[RankJob]) -> None:
        started = self._clock.now_s()
        answers: list[RankResult | RelayError]
        try:
            answers = engine.rank_batch([self._fitted(job, started) for job in batch])
        except RelayError as error:
            answers = [error] * len(batch)
        except Exception as error:
            log.exception("a rank batch failed")
            answers = [BackendError(f"the batch failed: {type(error).__name__}: {error}")] * len(batch)
        done = self._clock.now_s()
        for job, answer in zip(batch, answers, strict=True):
            job.done_s = done
            first = job.resolve(answer)
            if self._observer is None or not first:
                continue
            if isinstance(answer, RankResult):
                self._observer.ranked(job, answer)
            else:
                self._observer.failed("rank", answer)

    def _fitted(self, job: RankJob, now_s: float) -> RankRequest:
        """The job's request, with less history if all of it cannot be read before the deadline."""
        job.started_s, request = now_s, job.request
        if self._fit is None or not job.missing:
            return request
        events = self._fit(job, (job.deadline_s - now_s) * 1000)
        if events >= len(request.history):
            return request
        job.truncated = True
        # A part of the history is another prefix: it must not take the place of the whole one in the cache.
        return RankRequest(request.history.newest(events), request.candidates, request.query_time, keep=False)

    def _step(self, engine: Engine, flight: Flight) -> None:
        started, history = self._clock.now_s(), flight.history
        flight.started_s = flight.started_s or started
        try:
            _, cached = engine.peek(RankRequest(history, ()))
            served = engine.prefetch_chunk(history, max(self._chunk(cached), 1))
        except RelayError as error:
            self._fail(flight, error)
            return
        except Exception as error:
            log.exception("a prefetch step failed")
            self._fail(flight, BackendError(f"the step failed: {type(error).__name__}: {error}"))
            return
        flight.steps += 1
        flight.computed += served.tokens_computed
        flight.done_s = self._clock.now_s()
        if self._observer is not None:
            self._observer.stepped(flight, flight.done_s - started)
        with self._change:
            # What the pool has no room for makes no progress; a newer signal may have made the flight longer.
            unfinished = served.tokens_left > 0 or flight.history is not history
            if served.resident and unfinished and flight.waiting:
                self._flights.back(flight)
                return
        flight.resolve(served)

    def _fail(self, flight: Flight, error: RelayError) -> None:
        if flight.resolve(error) and self._observer is not None:
            self._observer.failed("prefix", error)

    def _landed(self, flight: Flight) -> None:
        with self._change:
            if self._by_owner.get(flight.owner) is flight:
                del self._by_owner[flight.owner]
