"""Who runs next: ranking before steps of prefetches, earliest deadline first, one executor thread.

A rank request waits for at most one step of a prefetch, plus rank requests that are more urgent. Everything
that waits is bounded; what nobody waits for any more is never computed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from relaygr.config.settings import SchedulerConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import NotReadyError, OverloadError, RelayError
from relaygr.engine.chores import Chores
from relaygr.engine.deadlines import DeadlineTimer, deadline_ms
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import (
    Admission,
    ChunkTokens,
    Cost,
    Fit,
    Flight,
    Load,
    Observer,
    PrefixAnswer,
    RankJob,
    Turn,
    guarded,
    tell,
)
from relaygr.engine.queues import FlightQueue, RankQueue
from relaygr.engine.relay import Relay
from relaygr.engine.requests import PrefetchResult, RankRequest
from relaygr.engine.tiers import Readable
from relaygr.engine.turns import Turnstile
from relaygr.engine.worker import Worker
from relaygr.relay.expander import Step

log = logging.getLogger("relaygr.engine")

DEFAULT_CHUNK_TOKENS = 256
_RETRY_MS = 50.0  # without timings of what is queued
_LAST_TURN_S = 5.0  # what a batch that still runs is given when the scheduler stops


class Scheduler:
    """Owns the only thread that runs the engine; every method may be called from any thread.

    `forget`, `drain` and `close` wait for that thread: they are not for callbacks of futures or observers.
    """

    def __init__(
        self,
        engine: Engine,
        config: SchedulerConfig | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        chunk_tokens: ChunkTokens | None = None,
        fit: Fit | None = None,
        cost: Cost | None = None,
        relay: Relay | None = None,
        chores: Chores | None = None,
        turns: Turnstile | None = None,
    ) -> None:
        """Run `engine`; what is None is left out.

        Args:
            observer: is told what becomes of the work.
            chunk_tokens: the size of a step of a prefetch.
            fit, cost: what is known of speed.
            relay: decides on prefix signals and holds prefixes; without it all are admitted and none held.
            chores: done when nothing else waits.
            turns: shared with whatever else computes in the process.
        """
        self.config = config or SchedulerConfig()
        self._relay, self._chores = relay, chores
        self._engine, self._observer, self._cost = engine, observer, cost
        self._clock = clock or MonotonicClock()
        self._chunk = chunk_tokens or (lambda cached, left: self.config.chunk_tokens or DEFAULT_CHUNK_TOKENS)
        self._ranks = RankQueue(self.config.rank_queue_max)
        self._flights = FlightQueue(self.config.prefix_queue_max)
        self._change = threading.Condition()
        self._stage: str = "open"  # then "draining", then "closed"
        self._turn: Turn | None = None
        self._timer = DeadlineTimer(self._clock)
        self._worker = Worker(
            self._clock, self._chunk, fit, observer, relay, chores, turns, land=self._land, back=self._back
        )
        self._thread = threading.Thread(target=self._run, name="relaygr-executor", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        """The engine that the next batch runs on."""
        return self._engine

    def rank(
        self, request: RankRequest, deadline_ms: float | None = None, budget_ms: float | None = None
    ) -> RankJob:
        """Queue a request; its future ends in a result or a RelayError.

        After `budget_ms` less of the history is read, down to nothing; at the deadline there is no answer.

        Raises:
            RequestError: the request does not fit the model or a limit, or the deadline is out of range.
            OverloadError: the queue is full.
            NotReadyError: the scheduler is stopping.
        """
        self._check_open()
        now = self._clock.now_s()
        deadline_s = now + self._deadline_s(deadline_ms, self.config.rank_deadline_ms)
        tokens, found = self._engine.locate(request)
        job = RankJob(request, deadline_s, now, tokens, found.device)
        job.found = found
        if budget_ms is not None:
            job.budget_s = job.urgent_s = min(now + budget_ms / 1000, deadline_s)
        job.add_done_callback(self._ended)
        with self._change:
            self._check_open()
            if not self._ranks.put(job):
                limit = self.config.rank_queue_max
                raise OverloadError(f"{limit} rank requests wait already", self._retry_ms())
            if self._relay is not None:
                job.signal = self._relay.arrived(job.owner, len(request.candidates))
                job.found = job.found if job.signal is None else job.signal.found
            self._change.notify_all()
        self._timer.watch(job)
        return job

    def prefix(
        self, history: UserHistory, deadline_ms: float | None = None, candidates: int | None = None
    ) -> PrefixAnswer:
        """Bring a prefix into the cache, step by step, when nothing more urgent runs; answers at once.

        A signal of a user whose prefix is on its way joins that flight, which then goes on to the newer
        history, in the place of the earlier deadline and until the later one. A signal while ranking is
        queued beyond a whole batch is refused: pre-inference is shed first.

        Args:
            history: of the user; what of it is missing is computed.
            deadline_ms: after it the prefix is of no use.
            candidates: how many will be ranked, if that is known.

        Raises:
            RequestError: the history does not fit the model, or the deadline is out of range.
            NotReadyError: the scheduler is stopping.
        """
        began_s = self._clock.now_s()
        self._check_open()
        engine = self._engine
        deadline_s = began_s + self._deadline_s(deadline_ms, self.config.prefix_deadline_ms)
        tokens, found = engine.locate(RankRequest(history, ()))
        flight = Flight(history, deadline_s, began_s, reloading=found.host > found.device)
        refused = self._refusal(flight, engine, tokens, found, candidates)
        if refused:
            return PrefixAnswer(Admission.REJECTED, refused, tokens, found.near, None)
        with self._change:  # no flight of the user lands between what is found of it and what is done
            self._check_open()
            found = self._prepare(flight, engine, found)
            if found.device == tokens:
                self._change.notify_all()  # what is found is to be held
                return PrefixAnswer(Admission.HIT, "", tokens, tokens, None)
            answer = self._board(flight, tokens, found.near)
        if self._relay is not None and answer.admission is Admission.REJECTED:
            self._relay.withdraw(flight.owner)
        if answer.flight is not None and answer.flight.deadline_s == deadline_s:
            self._timer.watch(answer.flight)
        return answer

    def _refusal(
        self, flight: Flight, engine: Engine, tokens: int, found: Readable, candidates: int | None
    ) -> str:
        """Why a signal is refused; empty if it is not."""
        relay = self._relay
        if relay is None:
            return "" if engine.model_config.cacheable == "append" else "not_reusable"
        verdict = relay.decide(flight.owner, tokens, found, candidates, self.wait_ms(), flight.queued_s)
        flight.left_ms = verdict.pre_ms or 0.0
        return "" if verdict.admitted else verdict.reason

    def _prepare(self, flight: Flight, engine: Engine, found: Readable) -> Readable:
        """How an admitted signal's flight begins; what is there of its prefix. Called with the lock held."""
        relay, history = self._relay, flight.history
        if relay is None:
            return found
        ref = engine.ref(history)
        if ref is None:  # without a history there is nothing to hold
            relay.withdraw(flight.owner)
            return found
        found = engine.readable(ref)
        flying = self._flights.flying(flight.owner)
        decision = relay.prepare(history, ref, found, flying, flight.queued_s, flight.deadline_s)
        flight.fetching = engine.below.fetchable(ref, flight.useful_s)
        flight.reloading = decision.step is Step.RELOAD
        return found

    def forget(self, tenant: str, user: str) -> int:
        """Drop everything of a user, queued and running work included; returns the cache entries dropped.

        Waits for the batch or step that runs now, and returns with nothing of the user held or on its way
        but what was asked for since.
        """
        owner = (tenant, user)
        with self._change:
            engine = self._turn.engine if self._turn is not None else self._engine
            doomed = {job for job in self._unanswered() if job.owner == owner}
        for job in doomed:
            job.cancel("the user was deleted")
        if self._relay is not None:
            self._relay.forget(owner)
        if self._chores is not None:
            self._chores.forget(owner)
        with self._change:
            # A batch that began before all of it was cancelled leaves an entry when it ends.
            running = self._turn
            if running is not None and not running.spares(doomed):
                self._change.wait_for(lambda: self._turn is not running)
            engines = {engine, self._engine}
        return sum(engine.forget(tenant, user) for engine in engines)

    def swap(self, engine: Engine) -> Engine:
        """Use `engine` from the next batch on; returns the one before, which may still finish a batch.

        No batch mixes models. Prefixes on their way start over on the new model. The engine before may hold
        users who are deleted later: it is to be dropped, not swapped in again.
        """
        with self._change:
            self._check_open()
            before, self._engine = self._engine, engine
        return before

    def load(self) -> Load:
        with self._change:
            return Load(len(self._ranks), len(self._flights), self._turn is not None)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new work, drop prefixes, finish what ranking is queued, stop.

        Returns False if time ran out. What is left then, running or not, ends in NotReadyError at once, and
        the batch that runs is waited for a few seconds more.
        """
        with self._change:
            if self._stage == "open":
                self._stage = "draining"
            flights = [job for job in self._unanswered() if isinstance(job, Flight)]
            self._change.notify_all()
        self._refuse(flights)
        with self._change:
            done = self._change.wait_for(lambda: self._turn is None and self._ranks.head() is None, timeout_s)
            self._stage = "closed"
            rest = self._unanswered()
            self._change.notify_all()
        self._refuse(rest)
        self._thread.join(_LAST_TURN_S)
        if self._thread.is_alive():
            log.warning("the engine still runs %.0f s after the end of the drain", _LAST_TURN_S)
        self._timer.close()
        return done

    def close(self) -> None:
        """Stop at once; what waits ends in NotReadyError."""
        self.drain(0.0)

    def _check_open(self) -> None:
        if self._stage != "open":
            raise NotReadyError("the service is stopping")

    def _deadline_s(self, asked_ms: float | None, default_ms: float) -> float:
        return deadline_ms(asked_ms, default_ms, self.config.deadline_max_ms) / 1000

    def wait_ms(self) -> float:
        """Until a prefix that is signalled now would be begun."""
        with self._change:
            running = self._turn.flight if self._turn is not None else None
            flights = {*self._flights, *([running] if running is not None else [])}
            return float(sum(flight.left_ms for flight in flights))

    def _retry_ms(self) -> float:
        return _RETRY_MS * max(len(self._ranks) / self.config.rank_batch_max, 1.0)

    def _unanswered(self) -> list[RankJob | Flight]:
        """Everything queued or running; called with the lock held."""
        return [*self._ranks, *self._flights, *(self._turn.jobs() if self._turn is not None else ())]

    def _board(self, flight: Flight, tokens: int, cached: int) -> PrefixAnswer:
        """Queue an admitted signal, or let it join its user's flight. Called with the lock held."""
        flight.add_done_callback(self._ended)
        before = self._flights.join(flight)
        if before is not None:
            return PrefixAnswer(Admission.JOINED, "", tokens, cached, before)
        if len(self._ranks) > self.config.rank_batch_max:
            return PrefixAnswer(Admission.REJECTED, "load", tokens, cached, None)
        if not self._flights.put(flight):
            return PrefixAnswer(Admission.REJECTED, "queue_full", tokens, cached, None)
        self._change.notify_all()
        return PrefixAnswer(Admission.ADMITTED, "", tokens, cached, flight)

    @staticmethod
    def _refuse(jobs: Sequence[RankJob | Flight]) -> None:
        for job in jobs:
            job.resolve(NotReadyError("the service is stopping"))

    def _run(self) -> None:
        while self._one_turn():
            pass

    def _one_turn(self) -> bool:
        """One batch or step; its engine and jobs are let go before the next is waited for."""
        with self._change:
            self._await_work()
            self._gather()
            if self._stage == "closed":
                return False
            most = min(self.config.rank_batch_max, self._engine.config.max_batch_requests)  # it refuses more
            now, share_ms = self._clock.now_s(), float("inf")
            if self._cost is not None and self._ranks.head() is not None:
                self._ranks.look_again(self._cached)
                share_ms = self._ranks.share_ms(now, self._cost)
            batch = self._ranks.batch(most, self.config.rank_batch_tokens, now, self._cost)
            flight = None if batch or not self._flights.next(self._engine) else self._flights.take()
            idle = not batch and flight is None and self._stage == "open"
            turn = self._turn = Turn(self._engine, batch, flight, share_ms)
        try:
            self._worker.run(turn, idle)
        finally:
            with self._change:
                self._turn = None
                self._change.notify_all()
        return True

    def _cached(self, job: RankJob) -> int:
        found = guarded("looking for a prefix", partial(self._engine.locate, job.request))
        return job.cached if isinstance(found, RelayError) else found[1].near

    def _await_work(self) -> None:
        """Until there is some, or holds have to be looked at; called with the lock held."""
        while not self._has_work():
            idle_s = self._idle_s()  # anew each time: what there is to hold comes without work
            if idle_s is not None and idle_s <= 0:
                return
            self._change.wait(idle_s)

    def _has_work(self) -> bool:
        work = self._ranks.head() or self._flights.next(self._engine)
        if work is not None or self._stage == "closed":
            return True
        return self._stage == "open" and self._chores is not None and self._chores.due(self._engine)

    def _idle_s(self) -> float | None:
        """How long to wait for work before holds have to be looked at; None for ever."""
        end_s = self._relay.next_end_s() if self._relay is not None else None
        idle_s = None if end_s is None else max(end_s - self._clock.now_s(), 0.0)
        return idle_s if self._chores is None else self._chores.idle_s(self._engine, idle_s)

    def _gather(self) -> None:
        """Wait for batch mates of a rank job, as long as that harms nobody; called with the lock held."""
        most, wait_s = self.config.rank_batch_max, self.config.rank_batch_wait_ms / 1000
        while self._stage == "open":
            left_s = self._ranks.spare_s(most, wait_s, self._clock.now_s())
            if left_s <= 0:
                return
            self._change.wait(left_s)

    def _back(self, flight: Flight) -> None:
        with self._change:
            self._flights.back(flight)

    def _land(self, turn: Turn, flight: Flight, history: UserHistory, served: PrefetchResult) -> bool:
        """End a flight that has brought `history`; False if it has to go on."""
        # What the pool has no room for makes no progress.
        finished = not (served.tokens_left > 0 and served.resident)
        with self._change:
            if not finished or flight.history is not history or self._engine is not turn.engine:
                self._flights.back(flight)
                return False
            self._flights.land(flight)
            if self._relay is not None:
                spent_s = flight.spent_s if flight.computed else 0.0
                self._relay.landed(flight.owner, turn.engine, history, served.resident, spent_s)
        return True

    def _ended(self, job: Future[Any]) -> None:
        """Runs once for each job, on the thread that answered it."""
        relay = self._relay
        with self._change:
            if isinstance(job, Flight):
                self._flights.land(job)
            if relay is not None and job.exception() is not None:
                if isinstance(job, RankJob):
                    relay.gave_up(job)
                elif isinstance(job, Flight) and not self._flights.flying(job.owner):
                    relay.failed(job.owner)
                self._change.notify_all()
        if self._observer is not None:
            guarded("an observer", partial(tell, self._observer, job))
