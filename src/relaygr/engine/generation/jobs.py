"""What waits for the generator."""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from relaygr.engine.generation.interface import Ask
from relaygr.engine.jobs import Job
from relaygr.generation.errors import GenerateCancelledError, GenerateDeadlineError

A = TypeVar("A")


class GenerateJob(Job[A], Generic[A]):
    """A caller's wait for a generation, or for a prompt that is encoded ahead.

    Attributes:
        ask: the checked request; closed by the scheduler when nothing reads it any more.
        passed_s: since when there is no room for it; infinite before.
        prefilled_s: when its prompt was complete; 0 before.
        wave: requests that ran when it began.
    """

    def __init__(self, ask: Ask, deadline_s: float, queued_s: float) -> None:
        super().__init__(deadline_s, queued_s)
        self.ask = ask
        self.passed_s = math.inf
        self.prefilled_s = 0.0
        self.wave = 0

    @property
    def owner(self) -> tuple[str, str]:
        return self.ask.owner

    @property
    def kind(self) -> str:
        """As observers are told."""
        return "generate" if self.ask.rows else "encode"

    def cancel(self, reason: str = "the caller gave up") -> bool:
        return self.resolve(GenerateCancelledError(self.ask.request_id, reason))

    def expire(self) -> bool:
        limit_ms = (self.deadline_s - self.queued_s) * 1000
        message = f"there was no answer within {limit_ms:.0f} ms"
        return self.resolve(GenerateDeadlineError(self.ask.request_id, message, limit=limit_ms))


AnyJob = GenerateJob[Any]
