"""What waits for the engine, each resolved exactly once, and what a scheduler is given and tells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from relaygr.core.errors import CancelledError, DeadlineError, RelayError
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import PrefetchResult, RankRequest, RankResult

Answer = TypeVar("Answer")


class Admission(StrEnum):
    """What became of a prefix signal."""

    ADMITTED = "admitted"  # queued
    HIT = "hit"  # everything is in the cache already
    JOINED = "joined"  # the same prefix is on its way
    REJECTED = "rejected"


class Job(Generic[Answer]):
    """One caller's wait. `future` ends in exactly one answer or one RelayError, whoever comes first.

    Attributes:
        deadline_s: on the scheduler's clock; an answer later than this is of no use.
        queued_s: when it came; `started_s`, `done_s`: when its work began and ended, 0 before.
    """

    def __init__(self, deadline_s: float, queued_s: float) -> None:
        self.future: Future[Answer] = Future()
        self.deadline_s, self.queued_s = deadline_s, queued_s
        self.started_s = self.done_s = 0.0
        self._lock = threading.Lock()
        self._resolved = False

    @property
    def waiting(self) -> bool:
        """Whether anybody still wants the answer."""
        return not self._resolved and not self.future.cancelled()

    def resolve(self, answer: Answer | RelayError) -> bool:
        """Give the answer; False if there was one already."""
        with self._lock:
            if self._resolved:
                return False
            self._resolved = True
        # Outside of the lock, because this runs the callbacks of whoever waits.
        if not self.future.set_running_or_notify_cancel():
            return False
        if isinstance(answer, RelayError):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)
        return True

    def cancel(self, reason: str = "the caller gave up") -> bool:
        """End the wait; work that has not begun never will."""
        return self.resolve(CancelledError(reason))

    def expire(self) -> bool:
        """End the wait because the deadline passed."""
        return self.resolve(DeadlineError("the deadline passed before there was an answer"))


class RankJob(Job[RankResult]):
    """A request to score.

    Attributes:
        tokens, cached: its history tokens, and how many of them were cached when it came.
        truncated: whether it was scored with less history than it has, to meet its deadline.
    """

    def __init__(
        self, request: RankRequest, deadline_s: float, queued_s: float, tokens: int = 0, cached: int = 0
    ) -> None:
        super().__init__(deadline_s, queued_s)
        self.request, self.tokens, self.cached = request, tokens, cached
        self.truncated = False

    @property
    def missing(self) -> int:
        """History tokens to compute."""
        return self.tokens - self.cached

    @property
    def owner(self) -> tuple[str, str]:
        return self.request.history.tenant, self.request.history.user


class Flight(Job[PrefetchResult]):
    """A prefix on its way into the cache, step by step; later signals of the same prefix join it."""

    def __init__(self, history: UserHistory, deadline_s: float, queued_s: float) -> None:
        super().__init__(deadline_s, queued_s)
        self.history = history
        self.steps = self.computed = 0

    @property
    def owner(self) -> tuple[str, str]:
        return self.history.tenant, self.history.user


ChunkTokens = Callable[[int], int]
"""History tokens of one prefetch step behind so many cached ones."""


Fit = Callable[[RankJob, float], int]
"""Newest events of a job's history that can be scored within so many milliseconds."""


class Observer(Protocol):
    """Hears what the scheduler does; called on its threads, must be quick and must not raise."""

    def ranked(self, job: RankJob, result: RankResult) -> None: ...

    def stepped(self, flight: Flight, seconds: float) -> None: ...

    def failed(self, kind: str, error: RelayError) -> None: ...


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
