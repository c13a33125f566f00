"""Spans of both laps join the client's trace, timed by the jobs; without the extra there are none."""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from live_service import live_service
from metric_cases import FIRST, HISTORY

from relaygr.core.clock import ManualClock
from relaygr.core.errors import BackendError
from relaygr.core.ids import Fingerprint
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.requests import Path, PrefetchResult, RankRequest, RankResult
from relaygr.serving import tracing
from relaygr.serving.tracing import Tracing, follow, trace_id_of

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01"
SERVED = PrefetchResult(Path.RESUMED, 256, 44, True, "", Fingerprint(FIRST))


class Recorded:
    """A tracing whose spans stay in memory, on a clock that stands at `now_s`."""

    def __init__(self, now_s: float) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider, ManualClock(now_s))

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    found = Recorded(now_s=100.0)
    yield found
    found.tracing.close()


def rank_job() -> RankJob:
    job = RankJob(RankRequest(HISTORY, [1, 2]), 101.0, 99.0)
    job.started_s, job.done_s = 99.25, 99.75
    return job


def answer(job: RankJob) -> None:
    job.resolve(RankResult(("engage",), np.zeros((2, 1), np.float32), SERVED))


def seconds(span: ReadableSpan) -> float:
    assert span.end_time is not None
    assert span.start_time is not None
    return (span.end_time - span.start_time) / 1e9


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_both_laps_join_the_trace_of_the_client(recorded: Recorded) -> None:
    flight = Flight(HISTORY, 101.0, 98.0)
    with recorded.tracing.request("POST", HEADER) as lap:
        assert lap.trace_id == TRACE
        follow(flight)
        lap.answered("/v1/prefix", 200)
    # The prefix goes on after its answer.
    flight.started_s, flight.done_s, flight.steps = 98.5, 99.0, 3
    flight.resolve(SERVED)
    with recorded.tracing.request("POST", HEADER) as lap:
        job = rank_job()
        follow(job)
        answer(job)
        lap.answered("/v1/rank", 200)
    spans = recorded.spans()
    assert set(spans) == {
        "POST /v1/prefix", "prefix queue", "prefix compute", "POST /v1/rank", "rank queue", "rank compute"
    }  # fmt: skip
    assert {f"{span.context.trace_id:032x}" for span in spans.values() if span.context} == {TRACE}
    for lap_name in ("prefix", "rank"):
        http = spans[f"POST /v1/{lap_name}"]
        assert http.parent is not None
        assert f"{http.parent.span_id:016x}" == PARENT
        for stage in ("queue", "compute"):
            parent = spans[f"{lap_name} {stage}"].parent
            assert parent is not None
            assert http.context is not None
            assert parent.span_id == http.context.span_id


def test_queue_and_compute_have_the_times_of_the_job(recorded: Recorded) -> None:
    with recorded.tracing.request("POST", None):
        job = rank_job()
        follow(job)
        answer(job)
    spans = recorded.spans()
    queue, compute = spans["rank queue"], spans["rank compute"]
    assert seconds(queue) == pytest.approx(0.25, abs=1e-6)
    assert seconds(compute) == pytest.approx(0.5, abs=1e-6)
    assert queue.end_time == compute.start_time
    # It ended a quarter of a second ago by the scheduler's clock.
    assert compute.end_time is not None
    assert time.time_ns() - compute.end_time == pytest.approx(0.25e9, abs=5e9)
    assert time.time_ns() - compute.end_time >= 0.25e9


def test_spans_say_what_was_done_and_not_for_whom(recorded: Recorded) -> None:
    with recorded.tracing.request("POST", None) as lap:
        job = rank_job()
        follow(job)
        answer(job)
        lap.answered("/v1/rank", 200)
    spans = recorded.spans()
    assert attributes(spans["rank compute"]) == {
        "relaygr.candidates": 2,
        "relaygr.truncated": False,
        "relaygr.path": "resumed",
        "relaygr.tokens_cached": 256,
        "relaygr.tokens_computed": 44,
        "relaygr.model": FIRST.hex(),
    }
    assert attributes(spans["POST /v1/rank"]) == {
        "http.request.method": "POST",
        "http.route": "/v1/rank",
        "http.response.status_code": 200,
    }
    assert "secret-user" not in "".join(span.to_json() for span in spans.values())


def test_a_job_that_never_began_has_only_its_wait(recorded: Recorded) -> None:
    with recorded.tracing.request("POST", None) as lap:
        job = RankJob(RankRequest(HISTORY, [1]), 99.5, 99.0)
        follow(job)
        job.expire()
        lap.answered("/v1/rank", 504)
    spans = recorded.spans()
    assert set(spans) == {"POST /v1/rank", "rank queue"}
    assert seconds(spans["rank queue"]) == pytest.approx(1.0, abs=1e-6)
    assert not spans["POST /v1/rank"].status.is_ok


def test_a_job_that_failed_says_how(recorded: Recorded) -> None:
    with recorded.tracing.request("POST", None):
        job = rank_job()
        follow(job)
        job.resolve(BackendError("scores of user 'secret-user' are not finite"))
    compute = recorded.spans()["rank compute"]
    assert attributes(compute)["error.type"] == "BackendError"
    assert "secret-user" not in compute.to_json()


def test_what_the_client_does_not_sample_is_not_recorded(recorded: Recorded) -> None:
    with recorded.tracing.request("POST", HEADER[:-2] + "00") as lap:
        assert lap.trace_id == TRACE
        job = rank_job()
        follow(job)
        answer(job)
    assert recorded.spans() == {}


def test_outside_of_a_request_nothing_is_followed(recorded: Recorded) -> None:
    job = rank_job()
    follow(job)
    answer(job)
    assert recorded.spans() == {}


def test_when_off_only_the_trace_id_is_known() -> None:
    off = Tracing.open(False)
    assert not off.on
    with off.request("POST", HEADER) as lap:
        assert lap.trace_id == TRACE
        assert tracing.here.get() is None
        follow(rank_job())
        lap.answered("/v1/rank", 200)
    off.close()


def test_spans_reach_the_exporter_when_on() -> None:
    exporter = InMemorySpanExporter()
    on = Tracing.open(True, exporter)
    with on.request("GET", None) as lap:
        lap.answered("/v1/models", 200)
    on.close()
    (span,) = exporter.get_finished_spans()
    assert span.name == "GET /v1/models"
    assert span.resource.attributes["service.name"] == "relaygr"


def test_without_the_extra_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with caplog.at_level(logging.WARNING, "relaygr.serving"):
        found = Tracing.open(True)
    assert not found.on
    assert "relaygr[otel]" in caplog.text


@pytest.mark.parametrize(
    "header",
    [
        None, "", "nonsense", HEADER[:-1], HEADER.upper(), HEADER + "-more",
        f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01",
        HEADER + "-" + "x" * 300,
    ],
)  # fmt: skip
def test_a_malformed_traceparent_names_no_trace_and_starts_a_new_one(
    recorded: Recorded, header: str | None
) -> None:
    if header == HEADER + "-more":
        assert trace_id_of(header) == TRACE  # a later version may add fields
        return
    assert trace_id_of(header) == ""
    with recorded.tracing.request("POST", header) as lap:
        assert lap.trace_id != TRACE
        assert len(lap.trace_id) == 32


def test_a_service_joins_prefix_and_ranking_of_a_client() -> None:
    exporter = InMemorySpanExporter()
    on = Tracing.open(True, exporter)
    with (
        live_service(tracing=on) as live,
        httpx.Client(base_url=live.url, timeout=30, headers={"traceparent": HEADER}) as client,
    ):
        body = {"user": "secret-user", "items": [1] * 50, "timestamps": [1_700_000_000] * 50}
        assert client.post("/v1/events", json=body, headers={"traceparent": ""}).is_success
        assert client.post("/v1/prefix", json={"user": "secret-user"}).json()["admission"] == "admitted"
        answer = client.post("/v1/rank", json={"user": "secret-user", "candidates": [1, 2]})
        assert answer.is_success
    on.close()
    spans = exporter.get_finished_spans()
    joined = [span for span in spans if span.context and f"{span.context.trace_id:032x}" == TRACE]
    names = sorted(span.name for span in joined)
    assert [name for name in names if not name.startswith("prefix")] == [
        "POST /v1/prefix", "POST /v1/rank", "rank compute", "rank queue"
    ]  # fmt: skip
    assert "prefix queue" in names
    assert "secret-user" not in "".join(span.to_json() for span in spans)
