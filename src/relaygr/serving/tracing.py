"""Spans of requests, of their wait and of their computation, for OpenTelemetry (the extra `otel`).

A client that sends the same `traceparent` with the prefix and the ranking of one request finds both in one
trace. Where traces are off or the extra is missing, only the id of the client's trace is kept, for the logs.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import RelayError
from relaygr.engine.jobs import Flight, Job, RankJob
from relaygr.engine.requests import PrefetchResult, RankResult

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

log = logging.getLogger("relaygr.serving")

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?"
)
_NAME = "relaygr"
_FLUSH_MS = 2000

here: ContextVar[Lap | None] = ContextVar("relaygr_lap", default=None)


def trace_id_of(traceparent: str | None) -> str:
    """The trace that a W3C `traceparent` names, 32 hexadecimal digits; empty for a malformed one or none."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent and len(traceparent) <= 256 else None
    return found[1] if found else ""


class Lap:
    """One HTTP request in its trace.

    Attributes:
        trace_id: 32 hexadecimal digits; empty for none.
    """

    def __init__(self, trace_id: str, recorder: _Recorder | None = None) -> None:
        self.trace_id, self._recorder = trace_id, recorder

    def answered(self, route: str, status: int) -> None:
        """Name the span by the pattern of the path, never by the path."""
        if self._recorder is not None:
            self._recorder.answered(route, status)

    def follow(self, job: Job[Any]) -> None:
        """Add the wait and the computation of a job when it is done."""
        if self._recorder is not None:
            job.add_done_callback(self._recorder.done)


def follow(job: Job[Any]) -> None:
    """`Lap.follow` of the request that this task serves, if there is one."""
    lap = here.get()
    if lap is not None:
        lap.follow(job)


class Tracing:
    """Opens a lap for every request."""

    def __init__(self, provider: TracerProvider | None = None, clock: Clock | None = None) -> None:
        """Without a provider there are no spans. `clock` is the one of the scheduler."""
        self._provider = provider
        self._tracer = provider.get_tracer(_NAME) if provider is not None else None
        self._clock = clock or MonotonicClock()

    @classmethod
    def open(cls, wanted: bool, exporter: SpanExporter | None = None) -> Tracing:
        """Spans to `exporter`, by default to the collector that the usual `OTEL_...` variables name.

        Where the extra is missing there are none, which the log says.
        """
        if not wanted:
            return cls()
        try:
            provider = _provider(exporter)
        except ImportError as error:
            log.warning("traces are off: the extra relaygr[otel] is missing (%s)", error.name)
            return cls()
        log.info("traces are on")
        return cls(provider)

    @property
    def on(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def request(self, method: str, traceparent: str | None, tracestate: str | None = None) -> Iterator[Lap]:
        """The lap of one request; within, `follow` finds it."""
        if self._tracer is None:
            yield Lap(trace_id_of(traceparent))
            return
        recorder = _Recorder.start(self._tracer, self._clock, method, traceparent, tracestate)
        lap = Lap(recorder.trace_id, recorder)
        token = here.set(lap)
        try:
            yield lap
        finally:
            here.reset(token)
            recorder.span.end()

    def close(self) -> None:
        """Send what is left, for at most two seconds."""
        if self._provider is not None:
            self._provider.force_flush(_FLUSH_MS)
            self._provider.shutdown()


@dataclass(frozen=True, slots=True)
class _Recorder:
    """The span of a request and what makes its children."""

    tracer: Tracer
    clock: Clock
    span: Span
    context: Context
    method: str

    @classmethod
    def start(
        cls, tracer: Tracer, clock: Clock, method: str, traceparent: str | None, tracestate: str | None
    ) -> _Recorder:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {"traceparent": traceparent or "", "tracestate": tracestate or ""}
        parent = TraceContextTextMapPropagator().extract(headers)
        span = tracer.start_span(method, context=parent, kind=trace.SpanKind.SERVER)
        return cls(tracer, clock, span, trace.set_span_in_context(span, parent), method)

    @property
    def trace_id(self) -> str:
        return f"{self.span.get_span_context().trace_id:032x}"

    def answered(self, route: str, status: int) -> None:
        self.span.update_name(f"{self.method} {route}")
        self.span.set_attribute("http.request.method", self.method)
        self.span.set_attribute("http.route", route)
        self.span.set_attribute("http.response.status_code", status)
        if status >= 500:
            from opentelemetry.trace import Status, StatusCode

            self.span.set_status(Status(StatusCode.ERROR))

    def done(self, job: Future[Any]) -> None:
        """Two children with the times of the job; a job that never began has only its wait."""
        if not isinstance(job, Job) or not self.span.get_span_context().trace_flags.sampled:
            return
        now_s = self.clock.now_s()
        wall_ns = time.time_ns() - round(now_s * 1e9)  # of the clock's zero
        lap = "rank" if isinstance(job, RankJob) else "prefix"
        began_s = job.started_s or now_s
        self._child(f"{lap} queue", wall_ns, job.queued_s, began_s, {})
        if job.started_s:
            self._child(f"{lap} compute", wall_ns, began_s, max(job.done_s, began_s), _attributes(job))

    def _child(
        self, name: str, wall_ns: int, begin_s: float, end_s: float, attributes: dict[str, Any]
    ) -> None:
        child = self.tracer.start_span(
            name, context=self.context, start_time=wall_ns + round(begin_s * 1e9), attributes=attributes
        )
        child.end(end_time=wall_ns + round(end_s * 1e9))


def _attributes(job: Job[Any]) -> dict[str, Any]:
    """What a span says of the computation; nothing of the user or the items."""
    found: dict[str, Any] = {}
    if isinstance(job, RankJob):
        found["relaygr.candidates"] = len(job.request.candidates)
        found["relaygr.truncated"] = job.truncated
    if isinstance(job, Flight):
        found["relaygr.steps"] = job.steps
    error = None if job.cancelled() else job.exception()
    if error is not None or job.cancelled():
        found["error.type"] = type(error).__name__ if isinstance(error, RelayError) else "cancelled"
        return found
    answer = job.result()
    served = answer.served if isinstance(answer, RankResult) else answer
    if isinstance(served, PrefetchResult):
        found["relaygr.path"] = served.path.value
        found["relaygr.tokens_cached"] = served.tokens_cached
        found["relaygr.tokens_computed"] = served.tokens_computed
        found["relaygr.model"] = served.model.hex()
    return found


def _provider(exporter: SpanExporter | None) -> TracerProvider:
    """Its queue is bounded: what a collector does not take in time is dropped."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": _NAME}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
