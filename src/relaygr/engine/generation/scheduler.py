"""One thread that generates: groups of requests, prompts that are encoded ahead, chores, in this order.

It blocks on work or on the end of a wait; nothing is polled. Every request that was accepted is answered
exactly once, whatever happens to it, to its group or to the thread's work.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from relaygr.config.generator import GeneratorConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import NotReadyError, RelayError
from relaygr.engine.deadlines import DeadlineTimer, deadline_ms
from relaygr.engine.generation.dispatch import NOTHING, Dispatch, Line, Wave
from relaygr.engine.generation.interface import Backend, GenerateObserver
from relaygr.engine.generation.jobs import AnyJob, GenerateJob
from relaygr.engine.jobs import guarded
from relaygr.engine.turns import Turnstile
from relaygr.generation.errors import GenerateCancelledError, QueueFullError

log = logging.getLogger("relaygr.engine")

_LAST_TURN_S = 5.0  # what a step that still runs is given when the scheduler stops


@dataclass(frozen=True, slots=True)
class GenerateLoad:
    """What waits and runs now.

    Attributes:
        waiting, running: requests; a prompt that is encoded ahead runs, too.
        rows, tokens: of the budgets: beams of what runs, and prompt tokens of it that are not computed yet.
        prompts: to encode ahead.
    """

    waiting: int
    running: int
    rows: int
    prompts: int
    tokens: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Claim:
    """Somebody is about to ask with a history of a user; `void` once that user is deleted."""

    owner: tuple[str, str]
    void: bool = False


class GenerateScheduler:
    """Owns the only thread that computes generations; every method may be called from any thread.

    `forget`, `drain` and `close` wait for that thread: they are not for callbacks of futures or observers.
    """

    def __init__(
        self,
        backend: Backend,
        config: GeneratorConfig | None = None,
        clock: Clock | None = None,
        observer: GenerateObserver | None = None,
        turns: Turnstile | None = None,
    ) -> None:
        """Run `backend`; `turns` are shared with whatever else computes in the process."""
        self.config = config or GeneratorConfig()
        self._backend, self._observer, self._turns = backend, observer, turns
        self._clock = clock or MonotonicClock()
        self._dispatch = Dispatch(backend, self.config, self._clock)
        lockstep = not self._dispatch.continuous
        self._wave = Wave(backend, self._clock, lockstep, self._turn, observer)
        self._line = Line(self.config.queue_max)
        self._prompts = Line(self.config.prefetch_queue_max)
        self._change = threading.Condition()
        self._stage = "open"  # then "draining", then "closed"
        self._running: frozenset[AnyJob] = frozenset()  # as of the step that runs, or is to run next
        self._used = NOTHING  # of the budgets, by the same
        self._steps = 0
        self._claims: weakref.WeakSet[Claim] = weakref.WeakSet()
        self._chores = False
        self._timer = DeadlineTimer(self._clock)
        self._thread = threading.Thread(target=self._run, name="relaygr-generator", daemon=True)
        self._thread.start()

    def claim(self, tenant: str, user: str) -> Claim:
        """To be taken before anybody else can delete the user, where a request with the user's history is
        made on another thread: a deletion until it is queued then ends it."""
        claim = Claim((tenant, user))
        with self._change:
            self._claims.add(claim)
        return claim

    def generate(
        self, request: Any, deadline_ms: float | None = None, claim: Claim | None = None
    ) -> GenerateJob[Any]:
        """Queue a request; its future ends in a result or a RelayError.

        Args:
            deadline_ms: from now; instead of the request's own.

        Raises:
            RequestError: it never fits the model, its catalogue or a limit, or the deadline is out of range.
            CancelledError: the user of `claim` was deleted.
            OverloadError: too many wait already.
            NotReadyError: there is no catalogue, or the scheduler is stopping.
        """
        return self._submit(request, deadline_ms, self._line, "generations", claim)

    def encode(
        self, request: Any, deadline_ms: float | None = None, claim: Claim | None = None
    ) -> GenerateJob[Any]:
        """Bring a prompt's keys and values into the cache when nothing is generated; as `generate`."""
        return self._submit(request, deadline_ms, self._prompts, "prompts", claim)

    def load(self) -> GenerateLoad:
        with self._change:
            used = self._used
            return GenerateLoad(
                len(self._line), len(self._running), used.rows, len(self._prompts), used.tokens
            )

    def forget(self, tenant: str, user: str) -> int:
        """Drop everything of a user, waiting and running work included; returns the entries dropped."""
        with self._change:
            for claim in self._claims:
                claim.void = claim.void or claim.owner == (tenant, user)
            doomed = [job for job in self._unanswered() if job.owner == (tenant, user)]
        for job in doomed:
            job.cancel("the user was deleted")
        with self._change:
            step = self._steps
            if self._running.intersection(doomed):
                self._change.wait_for(lambda: self._steps != step or not self._running)
        return self._backend.forget(tenant, user)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new work, drop prompts, finish what is to be generated, stop.

        Returns False if time ran out. What is left then, running or not, ends in NotReadyError at once, and
        the step that runs is waited for a few seconds more.
        """
        with self._change:
            if self._stage == "open":
                self._stage = "draining"
            prompts = [job for job in self._unanswered() if not job.ask.rows]
            self._change.notify_all()
        self._refuse(prompts)
        with self._change:
            done = self._change.wait_for(lambda: not self._running and not len(self._line), timeout_s)
            self._stage = "closed"
            rest = self._unanswered()
            self._change.notify_all()
        self._refuse(rest)
        self._thread.join(_LAST_TURN_S)
        if self._thread.is_alive():
            log.warning("the generator still runs %.0f s after the end of the drain", _LAST_TURN_S)
        self._timer.close()
        return done

    def close(self) -> None:
        """Stop at once; what waits ends in NotReadyError."""
        self.drain(0.0)

    def _submit(
        self, request: Any, asked_ms: float | None, line: Line, what: str, claim: Claim | None
    ) -> GenerateJob[Any]:
        self._check_open()
        now = self._clock.now_s()
        ask = self._backend.check(request)
        try:
            asked = ask.deadline_ms if asked_ms is None else asked_ms
            limit_ms = deadline_ms(asked, self.config.deadline_ms, self.config.deadline_max_ms)
            job: GenerateJob[Any] = GenerateJob(ask, now + limit_ms / 1000, now)
            with self._change:
                self._check_open()
                if claim is not None and claim.void:
                    raise GenerateCancelledError(ask.request_id, "the user was deleted")
                if line is self._line and self._idle():
                    self._dispatch.rested = True
                if not line.put(job):
                    message = f"{line.limit} {what} wait already"
                    retry_ms = self._dispatch.retry_ms(tuple(line))
                    raise QueueFullError(ask.request_id, message, limit=line.limit, retry_after_ms=retry_ms)
                self._change.notify_all()
        except RelayError:
            ask.close()
            raise
        job.add_done_callback(self._ended)
        self._timer.watch(job)
        return job

    def _check_open(self) -> None:
        if self._stage != "open":
            raise NotReadyError("the service is stopping")

    def _idle(self) -> bool:
        """Whether no generation waits or runs that anybody still wants; called with the lock held.

        One whose answer is just being given does not count: who asks again from there comes to an idle
        engine, although the thread has not looked yet.
        """
        running = any(job.waiting and job.ask.rows for job in self._running)
        return not running and next(iter(self._line), None) is None

    def _unanswered(self) -> list[AnyJob]:
        """Everything waiting or running; called with the lock held."""
        running = [job for job in self._running if job.waiting]
        return list({*self._line, *self._prompts, *running})

    @staticmethod
    def _refuse(jobs: Sequence[AnyJob]) -> None:
        for job in jobs:
            job.resolve(NotReadyError("the service is stopping"))

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._turns is None else self._turns.turn(ranking=False)

    def _run(self) -> None:
        while self._await_work():
            failed = guarded("a turn of the generator", self._one_turn)
            if failed is not None:
                self._wave.fail(failed)
                self._note(())
        self._wave.fail(NotReadyError("the service is stopping"))
        with self._change:
            rest = [*self._line.sweep(), *self._prompts.sweep()]
        for job in rest:
            guarded("letting a catalogue go", job.ask.close)
        self._note(())

    def _await_work(self) -> bool:
        """Until there is something to do; False when that will never be."""
        with self._change:
            while self._stage != "closed":
                waiting = tuple(self._line)
                hold_s = self._dispatch.hold_s(waiting, self._wave)
                if self._stage == "draining" and waiting:
                    hold_s = 0.0
                if self._wave.riders or hold_s <= 0:
                    return True
                if not waiting and (len(self._prompts) or self._chores):
                    return True
                if not waiting:
                    self._sweep()
                self._change.wait(None if hold_s == float("inf") else hold_s)
        return False

    def _one_turn(self) -> None:
        """Let requests start, and take a step; or else a step of a prompt; or else a chore."""
        with self._change:
            self._sweep()
            waiting = tuple(self._line)
        if self._dispatch.hold_s(waiting, self._wave) <= 0 or (waiting and self._stage == "draining"):
            self._board(waiting)
        if self._wave.riders:
            self._chores = True
            self._wave.step()
            self._note(rider.job for rider in self._wave.riders)
        elif (prompt := next(iter(self._prompts), None)) is not None:
            self._encode(prompt)
        elif not waiting and self._chores:
            with self._turn():
                self._chores = guarded("a chore", self._backend.chore) is True

    def _board(self, waiting: Sequence[AnyJob]) -> None:
        if self._wave.riders and not self._dispatch.continuous:
            return
        before = len(self._wave)
        gone = self._dispatch.board(waiting, self._wave)
        with self._change:
            self._line.remove(gone)
            self._running = frozenset(rider.job for rider in self._wave.riders)
            self._used = self._wave.used
            if self._running:
                self._dispatch.rested = False
        joined = self._wave.riders[before:]
        if joined and self._observer is not None:
            formed_s = joined[0].job.started_s - min(rider.job.queued_s for rider in joined)
            used = self._wave.used
            told = (len(self._wave), len(joined), used.rows, used.tokens, formed_s)
            guarded("an observer", partial(self._observer.started, *told))

    def _encode(self, job: AnyJob) -> None:
        with self._change:
            self._running = frozenset({job})
        outcome: object | None = None
        with self._turn():
            if job.waiting and job.deadline_s > self._clock.now_s():
                job.started_s = job.started_s or self._clock.now_s()
                answer = guarded("encoding a prompt", partial(self._backend.encode, job.ask))
                if isinstance(answer, RelayError):
                    outcome = answer
                else:
                    step, outcome = answer
                    if self._observer is not None:
                        guarded("an observer", partial(self._observer.stepped, step))
            elif job.waiting:
                job.expire()
        if outcome is not None:
            job.done_s = self._clock.now_s()
            job.resolve(outcome)
        self._chores = True
        self._note(())

    def _note(self, running: Any) -> None:
        """A step is over."""
        with self._change:
            self._running = frozenset(running)
            self._used = self._wave.used
            self._steps += 1
            self._sweep()
            self._change.notify_all()

    def _sweep(self) -> None:
        """Let go of what nobody waits for; called with the lock held, by the thread that computes."""
        for job in (*self._line.sweep(), *self._prompts.sweep()):
            guarded("letting a catalogue go", job.ask.close)

    def _ended(self, job: Future[Any]) -> None:
        """Runs once for each job, on the thread that answered it."""
        assert isinstance(job, GenerateJob)
        error = job.exception()
        with self._change:
            if error is None and job.ask.rows:
                self._dispatch.observe(job)
            self._change.notify_all()
        if self._observer is None:
            return
        if isinstance(error, RelayError):
            guarded("an observer", partial(self._observer.failed, job.kind, error))
        else:
            guarded("an observer", partial(self._observer.ended, job, job.result()))
