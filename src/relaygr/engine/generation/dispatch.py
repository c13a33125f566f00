"""Which requests start when, and what runs next: the rules, without threads.

Requests wait in order of arrival. One that there is no room for lets smaller ones pass, for a bounded time;
then room is kept for it. Both kinds of scheduling take the same steps and differ in who may join when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from relaygr.config.generator import GeneratorConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import RelayError
from relaygr.engine.generation.interface import Backend, GenerateObserver, Need, Seat, Step
from relaygr.engine.generation.jobs import AnyJob
from relaygr.engine.jobs import guarded
from relaygr.generation.errors import GenerateError, InternalError, QueueFullError

log = logging.getLogger("relaygr.engine")

Turn = Callable[[], AbstractContextManager[None]]
NOTHING = Need(0, 0)
_RETRY_MS = 10.0  # at least


class Line:
    """Requests that wait, oldest first; what nobody waits for any more is kept until it is swept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._jobs: dict[AnyJob, None] = {}

    def __len__(self) -> int:
        """Those that somebody waits for."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[AnyJob]:
        return (job for job in self._jobs if job.waiting)

    def put(self, job: AnyJob) -> bool:
        """Add a job behind the others; False if it is full."""
        if len(self._jobs) >= self.limit and len(self) >= self.limit:
            return False
        self._jobs[job] = None
        return True

    def remove(self, jobs: Sequence[AnyJob]) -> None:
        for job in jobs:
            self._jobs.pop(job, None)

    def sweep(self) -> list[AnyJob]:
        """Take out what nobody waits for."""
        ended = [job for job in self._jobs if not job.waiting]
        self.remove(ended)
        return ended


@dataclass(slots=True, eq=False)
class Rider:
    """A job that runs."""

    job: AnyJob
    seat: Seat
    need: Need


class Wave:
    """What runs now: from the admission of its requests until their answers.

    Args:
        lockstep: whether rounds begin only when every prompt is computed.
        turn: gives the processor for one step.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        lockstep: bool,
        turn: Turn = nullcontext,
        observer: GenerateObserver | None = None,
    ) -> None:
        self._backend, self._clock, self._lockstep = backend, clock, lockstep
        self._turn, self._observer = turn, observer
        self.riders: list[Rider] = []

    def __len__(self) -> int:
        return len(self.riders)

    @property
    def used(self) -> Need:
        """Of the budgets; prompts that are computed count no more."""
        total = NOTHING
        for rider in self.riders:
            total = total + (rider.need if not rider.seat.prefilled else Need(0, rider.need.rows))
        return total

    def step(self) -> None:
        """One part of the prompts, one round, or both where requests do not go in step."""
        self.reap()
        prompts = [rider for rider in self.riders if not rider.seat.prefilled]
        if prompts:
            self._run("a prefill", self._backend.prefill, prompts)
            now = self._clock.now_s()
            for rider in prompts:
                if rider.seat.prefilled:
                    rider.job.prefilled_s = now
            self.reap()
            if self._lockstep:
                return
        ready = [rider for rider in self.riders if rider.seat.prefilled]
        if ready:
            self._run("a round", self._backend.round, ready)
            self.reap()

    def reap(self) -> None:
        """End who has an answer, who is late, and whom nobody waits for: their memory first."""
        now = self._clock.now_s()
        stay: list[Rider] = []
        for rider in self.riders:
            job, outcome = rider.job, rider.seat.outcome
            if outcome is None and job.waiting and job.deadline_s > now:
                stay.append(rider)
                continue
            self._leave(rider)
            if outcome is not None:
                job.resolve(outcome)
            elif job.waiting:
                job.expire()
        self.riders = stay

    def fail(self, error: RelayError) -> None:
        """End everybody."""
        riders, self.riders = self.riders, []
        for rider in riders:
            self._leave(rider)
            rider.job.resolve(error)

    def _leave(self, rider: Rider) -> None:
        rider.job.done_s = self._clock.now_s()
        guarded("giving memory back", rider.seat.close)
        guarded("letting a catalogue go", rider.job.ask.close)

    def _run(self, what: str, work: Callable[[Sequence[Seat]], Step], riders: list[Rider]) -> None:
        with self._turn():
            # A ranking may have gone first, and taken its time.
            now = self._clock.now_s()
            riders = [one for one in riders if one.job.waiting and one.job.deadline_s > now]
            if not riders:
                return
            done = guarded(what, partial(work, [rider.seat for rider in riders]))
        if isinstance(done, RelayError):
            # The backend answers each request for itself, so that this is nobody's own error.
            self.riders = [rider for rider in self.riders if rider not in riders]
            for rider in riders:
                self._leave(rider)
                rider.job.resolve(InternalError(rider.job.ask.request_id, f"{what} failed: {done}"))
        elif self._observer is not None:
            guarded("an observer", partial(self._observer.stepped, done))


class Dispatch:
    """Decides who starts. Not thread-safe, except that jobs may end at any time.

    Attributes:
        rested: whether a request came, since the last one began, when no other waited or ran: there is no
            group to wait for then, so that it starts at once, with whoever else is there.
    """

    def __init__(self, backend: Backend, config: GeneratorConfig, clock: Clock) -> None:
        self._backend, self.config, self._clock = backend, config, clock
        self.continuous = config.scheduling == "continuous"
        self.rested = True
        self.wave_s = 0.0  # how long requests take, of late, from their start to their answer

    def hold_s(self, waiting: Sequence[AnyJob], wave: Wave) -> float:
        """How long to wait before somebody may start; 0 for not at all, infinite while a group runs."""
        if not waiting or (wave.riders and not self.continuous):
            return float("inf")
        if self.rested or wave.riders or self._full(waiting):
            return 0.0
        wait_s = self.config.max_wait_ms / 1000
        # Nobody waits past the middle of the time that there is.
        end_s = min(min(job.queued_s + wait_s, (job.queued_s + job.deadline_s) / 2) for job in waiting)
        return max(end_s - self._clock.now_s(), 0.0)

    def board(self, waiting: Sequence[AnyJob], wave: Wave) -> list[AnyJob]:
        """Let those start that there is room for; returns who does not wait any more."""
        used, gone, joined = wave.used, list[AnyJob](), list[Rider]()
        for job in waiting:
            now = self._clock.now_s()
            if job.waiting and job.deadline_s <= now:
                job.expire()
            if not job.waiting:
                continue  # swept later
            need, seat = self._try(job, used, wave)
            if isinstance(seat, RelayError):
                gone.append(job)
                guarded("letting a catalogue go", job.ask.close)
                job.resolve(seat)
                continue
            if seat is None:
                job.passed_s = min(job.passed_s, now)
                if now - job.passed_s >= self.config.max_bypass_ms / 1000:
                    break  # room is kept for it
                continue
            job.started_s = now
            used = used + need
            gone.append(job)
            rider = Rider(job, seat, need)
            joined.append(rider)
            wave.riders.append(rider)
        for rider in joined:
            rider.job.wave = len(wave)
        return gone

    def retry_ms(self, waiting: Sequence[AnyJob]) -> float:
        """When one more request would be likely to find room in the line."""
        groups = sum(job.ask.rows for job in waiting) / self.config.max_beam_rows
        return max(1000 * self.wave_s * max(groups, 1.0), _RETRY_MS)

    def observe(self, job: AnyJob) -> None:
        """A request is over."""
        seconds = job.done_s - job.started_s
        self.wave_s = seconds if not self.wave_s else 0.9 * self.wave_s + 0.1 * seconds

    def _try(self, job: AnyJob, used: Need, wave: Wave) -> tuple[Need, Seat | RelayError | None]:
        """What it needs, and its seat, why it will never have one, or None if there is no room for it now."""
        rows, alone = Need(0, job.ask.rows), not wave.riders
        # What is cached of its prompt is only looked for if it matters.
        if not alone and not self._fits(used + rows):
            return rows, None
        need = guarded("looking for a prompt", partial(self._backend.need, job.ask))
        if isinstance(need, RelayError):
            return rows, self._named(job, need)
        if not alone and not self._fits(used + need):
            return need, None
        seat = guarded("admission", partial(self._backend.seat, job.ask))
        if isinstance(seat, RelayError):
            return need, self._named(job, seat)
        if seat is None and alone:
            # Nothing runs that it could wait for.
            message = "there is no memory for it, and nothing runs that would give some back"
            return need, QueueFullError(job.ask.request_id, message, retry_after_ms=self.retry_ms([job]))
        return need, seat

    @staticmethod
    def _named(job: AnyJob, error: RelayError) -> RelayError:
        if isinstance(error, GenerateError):
            return error
        return InternalError(job.ask.request_id, str(error))

    def _fits(self, need: Need) -> bool:
        return need.tokens <= self.config.max_batch_tokens and need.rows <= self.config.max_beam_rows

    def _full(self, waiting: Sequence[AnyJob]) -> bool:
        """Whether waiting longer could not make the next group larger."""
        tokens, rows = sum(job.ask.tokens for job in waiting), sum(job.ask.rows for job in waiting)
        return tokens >= self.config.max_batch_tokens or rows >= self.config.max_beam_rows
