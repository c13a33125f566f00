"""What both cascades share: their settings, the clock of one request, and the counts of its signals."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any

from relaygr.client.answers import Hint
from relaygr.client.calls import History, Ints, check_ms, column
from relaygr.client.errors import DeadlineExceededError, RequestRejectedError
from relaygr.client.recommendation import Admission, Timings

Stage = Callable[..., Any]
"""`retrieve` or `preprocess`, of types that only the pipeline knows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all requests of a cascade share; see `Cascade`."""

    budget_ms: float | None
    deadline_ms: float | None
    candidates: int | None

    def __post_init__(self) -> None:
        for name, value in (("budget_ms", self.budget_ms), ("deadline_ms", self.deadline_ms)):
            if value is not None:
                check_ms(name, value)
        if self.candidates is not None:
            column("candidates", [self.candidates])


@dataclass(frozen=True, slots=True)
class Asked:
    """What both laps of one request say."""

    user: str
    history: History | None
    request_id: str
    traceparent: str | None

    @classmethod
    def of(cls, user: str, history: History | None, request_id: str | None, traceparent: str | None) -> Asked:
        return cls(user, history, request_id or uuid.uuid4().hex, traceparent)

    def signal(self, plan: Plan) -> dict[str, Any]:
        """The arguments of `prefix`, besides the user."""
        return {
            "history": self.history,
            "deadline_ms": plan.deadline_ms,
            "candidates": plan.candidates,
            "request_id": self.request_id,
            "traceparent": self.traceparent,
        }

    def rank(self, plan: Plan, left_ms: float | None, hint: Hint | None) -> dict[str, Any]:
        """The arguments of `rank`, besides the user, the candidates and the caller's own."""
        return {
            "history": self.history,
            "deadline_ms": left_ms,
            "budget_ms": plan.budget_ms,
            "hint": hint,
            "request_id": self.request_id,
            "traceparent": self.traceparent,
        }


class Watch:
    """The clock of one request; all times are monotonic seconds."""

    def __init__(self, deadline_ms: float | None, request_id: str, now_s: float) -> None:
        self._start_s, self._deadline_ms, self._request_id = now_s, deadline_ms, request_id
        self._end_s: float | None = None
        self._stage = "the time before ranking"
        self._took_ms: dict[str, float] = {}
        self._lead_ms: float | None = None

    def begin(self, stage: str) -> None:
        self._stage = stage

    def took(self, stage: str, seconds: float) -> None:
        self._took_ms[stage] = self._took_ms.get(stage, 0.0) + 1000 * seconds

    def lead(self, now_s: float) -> None:
        """The first rank call goes out now."""
        if self._lead_ms is None:
            self._lead_ms = 1000 * (now_s - self._start_s)

    def end(self, now_s: float) -> None:
        self._end_s = now_s

    def left_ms(self, now_s: float) -> float | None:
        """What is left of the deadline, None without one; DeadlineExceededError when nothing is."""
        if self._deadline_ms is None:
            return None
        left_ms = self._deadline_ms - 1000 * (now_s - self._start_s)
        if left_ms <= 0:
            raise self.late()
        return left_ms

    def late(self) -> DeadlineExceededError:
        message = f"no answer within {self._deadline_ms} ms: they ended in {self._stage}"
        return DeadlineExceededError(message, self._request_id)

    def timings(self, now_s: float) -> Timings:
        end_s = now_s if self._end_s is None else self._end_s
        took = self._took_ms.get
        total_ms = 1000 * (end_s - self._start_s)
        return Timings(took("retrieval"), took("pre-processing"), self._lead_ms, took("ranking"), total_ms)


class Counts:
    """How many signals ended how; safe between threads."""

    def __init__(self) -> None:
        self._counts: Counter[Admission] = Counter()
        self._lock = threading.Lock()

    def add(self, admission: Admission) -> None:
        with self._lock:
            self._counts[admission] += 1

    def read(self) -> dict[Admission, int]:
        with self._lock:
            return {admission: self._counts[admission] for admission in Admission}


def nothing(found: object) -> bool:
    """Whether a stage found nothing to go on with; what has no length may hold something."""
    return found is None or (isinstance(found, Sized) and len(found) == 0)


def candidates_of(found: object) -> list[int]:
    """What a pipeline found, as ids; RequestRejectedError if it is none."""
    ids: Ints = found  # type: ignore[assignment]
    return [] if nothing(found) else column("candidates", ids)


def missing() -> RequestRejectedError:
    return RequestRejectedError("retrieve: not given; use `lap` without it", field="retrieve")
