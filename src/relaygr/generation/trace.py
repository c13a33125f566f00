"""When each part of a group's rounds ran, so that it can be seen what the critical path does not contain."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from relaygr.core.clock import Clock

Phase: TypeAlias = Literal["prefill", "head", "select", "prepare", "forward", "wait"]


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of work.

    Attributes:
        phase: what was done; "wait" is what the loop waited for preparation behind a forward.
        step: number of the group's step, from 0; prefills belong to the step that follows.
        request_id: whose work; empty for what a group does together.
        start_s, end_s: on the loop's clock.
        thread: who did it.
    """

    phase: Phase
    step: int
    request_id: str
    start_s: float
    end_s: float
    thread: int

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    def overlap_s(self, other: Span) -> float:
        """How long both ran."""
        return max(0.0, min(self.end_s, other.end_s) - max(self.start_s, other.start_s))


class Trace:
    """The last `keep` spans, in the order in which they ended; any thread may add."""

    def __init__(self, clock: Clock, keep: int = 4096) -> None:
        self._clock = clock
        self._spans: deque[Span] = deque(maxlen=keep)
        self._lock = threading.Lock()

    @contextmanager
    def span(self, phase: Phase, step: int, request_id: str = "") -> Iterator[None]:
        start = self._clock.now_s()
        try:
            yield
        finally:
            span = Span(phase, step, request_id, start, self._clock.now_s(), threading.get_ident())
            with self._lock:
                self._spans.append(span)

    def spans(self, phase: Phase | None = None) -> list[Span]:
        """All that are kept, or those of one phase."""
        with self._lock:
            return [span for span in self._spans if phase is None or span.phase == phase]

    def hidden_share(self) -> float:
        """Part of the preparing that ran beside a forward or prefill of another thread; 1 without any."""
        covers = self.spans("forward") + self.spans("prefill")
        prepared = self.spans("prepare")
        total = sum(span.duration_s for span in prepared)
        hidden = sum(
            span.overlap_s(cover) for span in prepared for cover in covers if cover.thread != span.thread
        )
        return hidden / total if total else 1.0
