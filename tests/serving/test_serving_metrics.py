"""Metrics count what they are told, once, under labels that stay few; the status says the same."""

from __future__ import annotations

import threading

import msgspec
import pytest
from metric_cases import FIRST, HISTORY, POOL, SECOND, facts, tell_everything, tell_ranked
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError, RequestError
from relaygr.engine.jobs import Admission, Flight, PrefixAnswer
from relaygr.engine.requests import Path
from relaygr.serving.metrics import Metrics
from relaygr.serving.recent import Recent, percentile_ms
from relaygr.serving.series import MODELS_MAX, VALUES_MAX
from relaygr.serving.snapshot import Status

START_S = 1000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_S)


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    return Metrics(clock, wall_s=lambda: 1_700_000_000.0 + clock.now_s() - START_S)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    labels = {"model": FIRST.hex()[:12], **labels}
    return metrics.registry.get_sample_value(f"relaygr_{name}", labels)


def total(metrics: Metrics, name: str) -> float:
    return sum(s.value for f in metrics.registry.collect() for s in f.samples if s.name == f"relaygr_{name}")


def test_every_family_has_a_sample_once_everything_happened_and_every_sample_a_model(
    metrics: Metrics,
) -> None:
    tell_everything(metrics, START_S)
    families = list(metrics.registry.collect())
    assert [f.name for f in families if not any(s.labels["model"] != "none" for s in f.samples)] == []
    assert all(f.documentation for f in families)
    assert all(f.name.startswith("relaygr_") for f in families)
    text, kind = metrics.render()
    assert kind.startswith("text/plain")
    assert {f.name for f in parse(text.decode())} == {f.name for f in families}
    assert b"_created" not in text


def test_a_scraper_that_asks_for_openmetrics_gets_it(metrics: Metrics) -> None:
    tell_everything(metrics, START_S)
    text, kind = metrics.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(text.decode())}
    assert "relaygr_rank_latency_seconds" in names


def test_ranking_is_counted_by_path(metrics: Metrics) -> None:
    tell_everything(metrics, START_S)
    for path in ("hit", "resumed", "full", "truncated"):
        assert value(metrics, "requests_total", stage="rank", path=path) == 1
        assert value(metrics, "rank_latency_seconds_sum", path=path) == pytest.approx(0.010)
    assert value(metrics, "lap_queue_seconds_sum", **{"class": "rank"}) == pytest.approx(0.008)
    assert value(metrics, "history_tokens_total", source="cached") == 556
    assert value(metrics, "history_tokens_total", source="computed") == 472
    assert value(metrics, "served_tokens_sum") == 1028
    steps = {step: value(metrics, "fallback_total", step=step) for step in ("resume", "full", "truncated")}
    assert steps == {"resume": 1, "full": 1, "truncated": 1}
    looked = {r: value(metrics, "prefix_lookups_total", lap="rank", result=r) for r in ("device", "partial")}
    assert looked == {"device": 1, "partial": 1}


def test_the_budget_decides_what_is_in_time_else_the_deadline(metrics: Metrics) -> None:
    tell_ranked(metrics, START_S, compute_s=0.4)  # its own deadline is 500 ms
    assert value(metrics, "slo_ok_total", path="hit") == 1
    metrics.serve(facts(), rank_budget_ms=50.0)
    tell_ranked(metrics, START_S, compute_s=0.4)
    tell_ranked(metrics, START_S, compute_s=0.01)
    tell_ranked(metrics, START_S, compute_s=0.01, truncated=True, path=Path.FULL)
    assert value(metrics, "slo_ok_total", path="hit") == 2
    assert value(metrics, "slo_ok_total", path="truncated") is None


def test_an_empty_history_is_no_fallback(metrics: Metrics) -> None:
    tell_ranked(metrics, START_S, path=Path.FULL, cached=0, computed=0)
    assert total(metrics, "fallback_total") == 0


def test_signals_and_their_flights(metrics: Metrics) -> None:
    tell_everything(metrics, START_S)
    reasons = ("admitted", "joined", "hit", "load")
    assert [value(metrics, "trigger_decisions_total", reason=reason) for reason in reasons] == [1, 1, 1, 1]
    assert value(metrics, "requests_total", stage="prefix", path="rejected") == 1
    assert value(metrics, "flight_joins_total") == 1
    assert value(metrics, "preinfer_chunks_total") == 1
    assert value(metrics, "preinfer_chunk_seconds_sum") == pytest.approx(0.004)
    assert value(metrics, "preinfer_seconds_sum") == pytest.approx(0.020)
    assert value(metrics, "lap_queue_seconds_sum", **{"class": "prefix"}) == pytest.approx(0.010)


def test_a_flight_that_failed_is_no_finished_prefix(metrics: Metrics) -> None:
    tell_everything(metrics, START_S)

    flight = Flight(HISTORY, START_S + 1, START_S)
    metrics.signalled(PrefixAnswer(Admission.ADMITTED, "", 300, 0, flight))
    flight.expire()
    assert value(metrics, "preinfer_seconds_count") == 1


def test_errors_by_what_they_were(metrics: Metrics) -> None:
    tell_everything(metrics, START_S)
    metrics.failed("rank", RequestError("candidates", "too many"))
    metrics.failed("rank", ConfigError("a", "not of a request"))
    for name in ("deadline_missed_total", "cancelled_total"):
        assert value(metrics, name, stage="rank") == value(metrics, name, stage="prefix") == 1
    kinds = {
        kind: value(metrics, "failed_total", stage="rank", kind=kind)
        for kind in ("backend", "request", "other")
    }
    assert kinds == {"backend": 1, "request": 1, "other": 1}
    assert value(metrics, "disconnects_total", stage="rank") == 1


def test_pool_queue_and_model_are_read_when_scraped(metrics: Metrics) -> None:
    tell_everything(metrics, START_S)
    assert value(metrics, "device_bytes", state="pinned") == POOL.pinned_bytes
    assert value(metrics, "device_bytes", state="evictable") == 30 * 4096
    assert value(metrics, "device_bytes", state="free") == POOL.free_bytes
    assert value(metrics, "cache_evictions_total", tier="device", cause="room") == 5
    assert value(metrics, "lease_overdue_total") == 1
    assert value(metrics, "queue_depth", **{"class": "rank"}) == 3
    assert value(metrics, "requests_in_progress") == 9
    assert value(metrics, "latency_model_error_ratio") == pytest.approx(0.07)
    assert value(metrics, "model_loaded_timestamp_seconds") == 1_700_000_000.0
    assert value(metrics, "start_timestamp_seconds") == 1_700_000_000.0
    assert (value(metrics, "resident_bytes") or 0) > 1e6


def test_nothing_is_needed_before_a_model_is_there(metrics: Metrics) -> None:
    text, _ = metrics.render()
    assert b'relaygr_queue_depth{class="rank",model="none"} 0.0' in text
    status = metrics.snapshot("starting")
    assert status.model is None
    assert status.pool is None
    assert status.ranking == []


def test_each_answer_counts_for_the_model_that_gave_it(metrics: Metrics) -> None:
    metrics.serve(facts(FIRST))
    tell_ranked(metrics, START_S, model=FIRST)
    metrics.serve(facts(SECOND))
    tell_ranked(metrics, START_S, model=FIRST)  # from the last batch before the swap
    tell_ranked(metrics, START_S, model=SECOND)
    assert value(metrics, "requests_total", stage="rank", path="hit") == 2
    second = SECOND.hex()[:12]
    assert value(metrics, "requests_total", stage="rank", path="hit", model=second) == 1


def test_models_of_long_ago_are_dropped_and_counted_again_when_they_come_back(metrics: Metrics) -> None:
    models = [bytes([place]) * 16 for place in range(10)]
    for model in models:
        metrics.serve(facts(model))
        tell_ranked(metrics, START_S, model=model)
    families = metrics.registry.collect()
    seen = {
        s.labels["model"] for f in families for s in f.samples if f.name == "relaygr_rank_latency_seconds"
    }
    assert seen == {model.hex()[:12] for model in models[-MODELS_MAX:]}
    metrics.serve(facts(models[0]))
    tell_ranked(metrics, START_S, model=models[0])
    assert value(metrics, "requests_total", stage="rank", path="hit", model="00" * 6) == 1


def test_labels_stay_few_whatever_comes(metrics: Metrics) -> None:
    for place in range(1000):
        metrics.answered(f"/v1/users/{place}", 200, 0.001)
        metrics.signalled(PrefixAnswer(Admission.REJECTED, f"because of user-{place}", 10, 0, None))
    text, _ = metrics.render()
    routes = [line for line in text.splitlines() if line.startswith(b"relaygr_http_requests_total")]
    assert len(routes) == VALUES_MAX + 1
    assert (
        value(metrics, "http_requests_total", model="none", route="other", status="other")
        == 1000 - VALUES_MAX
    )
    assert value(metrics, "trigger_decisions_total", model="none", reason="other") == 1000
    assert b"user-" not in text


def test_no_user_is_ever_a_label(metrics: Metrics) -> None:
    tell_everything(metrics, START_S)
    assert b"secret-user" not in metrics.render()[0]
    assert b"secret-user" not in msgspec.json.encode(metrics.snapshot())


def test_the_engine_is_busy_once_for_a_whole_batch(metrics: Metrics, clock: ManualClock) -> None:
    clock.advance(10.0)
    for _ in range(4):
        tell_ranked(metrics, clock.now_s(), compute_s=1.0)
    assert metrics.utilisation == pytest.approx(0.1)


def test_the_status_says_what_happened(metrics: Metrics, clock: ManualClock) -> None:
    clock.advance(20.0)
    tell_everything(metrics, clock.now_s())
    status = msgspec.json.decode(msgspec.json.encode(metrics.snapshot()), type=Status)
    assert status.model is not None
    assert status.model.fingerprint == FIRST.hex()
    assert status.model_age_s == 20.0
    assert status.uptime_s == 20.0
    assert [one.path for one in status.ranking] == ["all", "full", "hit", "resumed", "truncated"]
    assert status.ranking[0].minute.count == 4
    assert status.ranking[2].minute.p99_ms == pytest.approx(10.0, rel=0.02)
    assert {one.name: one.minute for one in status.admissions} == {
        "admitted": 1,
        "hit": 1,
        "joined": 1,
        "load": 1,
    }
    assert {one.name: one.minute for one in status.answers} == {"2xx": 1, "5xx": 1}
    assert {one.name: one.five_minutes for one in status.lost} == {"deadline": 2, "cancelled": 2, "failed": 2}
    assert {one.name: one.minute for one in status.tokens} == {"cached": 556, "computed": 472}
    assert status.rates.rank == 0.2
    assert status.rates.errors == 0.05
    assert status.rates.slo_ok_share == pytest.approx(3 / 7, abs=1e-4)
    assert status.queue.ranks == 3
    assert status.queue.flights == 4
    assert status.queue.busy
    assert status.pool is not None
    parts = status.pool.free_bytes + status.pool.pinned_bytes + status.pool.evictable_bytes
    assert parts == status.pool.total_bytes


def test_a_minute_is_forgotten_before_five(metrics: Metrics, clock: ManualClock) -> None:
    metrics.serve(facts())
    tell_ranked(metrics, clock.now_s())
    clock.advance(100.0)
    latency = metrics.snapshot().ranking[0]
    assert latency.minute.count == 0
    assert latency.minute.p50_ms is None
    assert latency.five_minutes.count == 1
    clock.advance(250.0)
    assert metrics.snapshot().ranking == []


def test_the_timeline_has_every_slice_oldest_first(metrics: Metrics, clock: ManualClock) -> None:
    tell_ranked(metrics, clock.now_s())
    clock.advance(12.0)
    timeline = metrics.snapshot().timeline
    assert [moment.age_s for moment in timeline] == [7.0, 2.0]
    assert [moment.rank_per_s for moment in timeline] == [0.2, 0.0]
    assert timeline[0].p50_ms == pytest.approx(10.0, rel=0.02)
    assert timeline[1].p50_ms is None
    clock.advance(1000.0)
    assert len(metrics.snapshot().timeline) == 60


@pytest.mark.parametrize("seconds", [1e-9, 1e-5, 3e-4, 0.0123, 1.7, 600.0, 1e9])
def test_a_percentile_is_within_two_percent(clock: ManualClock, seconds: float) -> None:
    recent = Recent(clock)
    recent.observe(seconds, "one")
    expected = min(max(seconds, 1e-5), 1e4) * 1e3
    assert percentile_ms(recent.latencies(60.0)["one"], 0.99) == pytest.approx(expected, rel=0.025)


def test_percentiles_are_nearest_ranks(clock: ManualClock) -> None:
    recent = Recent(clock)
    for ms in range(1, 101):
        recent.observe(ms / 1000, "all")
    buckets = recent.latencies(300.0)["all"]
    for share, expected in ((0.5, 50), (0.95, 95), (0.99, 99)):
        assert percentile_ms(buckets, share) == pytest.approx(expected, rel=0.025)


def test_memory_does_not_grow_with_what_is_noted(clock: ManualClock) -> None:
    recent = Recent(clock)
    for place in range(5000):
        recent.observe((place % 97 + 1) / 1000, "all")
        recent.count("ranked")
        clock.advance(0.5)
    held = [one for one in recent._ring if one is not None]
    assert len(held) == 61
    assert sum(len(one.latencies["all"]) for one in held if "all" in one.latencies) <= 61 * 10


def test_threads_lose_nothing(metrics: Metrics) -> None:
    metrics.serve(facts())

    def work() -> None:
        for _ in range(500):
            tell_ranked(metrics, START_S)
            metrics.answered("/v1/rank", 200, 0.01)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "requests_total", stage="rank", path="hit") == 2000
    assert metrics.snapshot().ranking[0].minute.count == 2000
