"""What the relay does can be read off the metrics: every name is there, and says what happened."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace as with_fields
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from relay_apps import LONG, SHORT, feedback, follow, metric, relay_settings, signal
from serving_apps import App, events, running

from relaygr.config.relay import Member, RouterConfig
from relaygr.config.settings import Config
from relaygr.core.errors import RelayError
from relaygr.core.units import MIB
from relaygr.engine import RankRequest, RankResult
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.serving.fleet import Fleet
from relaygr.serving.forward import Forwarder
from relaygr.serving.router_metrics import RouterMetrics

INSTANCE = {
    *("rank_latency_seconds", "lap_queue_seconds", "requests_total", "slo_ok_total"),
    *("deadline_missed_total", "cancelled_total", "trigger_decisions_total", "trigger_decision_seconds"),
    *("trigger_at_risk_precision", "trigger_at_risk_recall", "latency_model_error_ratio"),
    *("slot_utilisation", "relay_live_bytes", "relay_bound_bytes", "relay_entries", "host_bytes"),
    *("preinfer_seconds", "lead_seconds", "reload_seconds", "served_tokens", "preinfer_chunks_total"),
    *("prefix_lookups_total", "flight_joins_total", "prefix_waste_total", "ready_before_rank_ratio"),
    *("reload_inflight", "reload_skipped_total", "copy_bytes_total", "spill_total"),
    *("host_evictions_total", "lease_overdue_total", "late_events_total", "fallback_total"),
    *("epsilon_abs", "build_mismatch_total", "relay_build_enabled"),
}
ROUTER = {
    *("router_requests_total", "router_spills_total", "router_affinity_miss_total", "router_epoch"),
    *("router_keys_moved_ratio", "router_load_max_over_mean", "router_placements", "build_mismatch_total"),
}


@pytest.fixture(scope="module")
def busy(model_folder: Path) -> Iterator[App]:
    """An instance to which everything has happened, on a device that 32 long users fill."""
    config = relay_settings(
        model_folder,
        engine={"device_bytes": MIB},
        host={"load": "always", "run_chunk_tokens": 32, "host_bytes": MIB, "checksum_share": 1.0},
        relay={"len_bucket_tokens": 16, "h_relay_bytes": MIB},
    )
    with running(replace(config, relay=replace(config.relay, shadow_rate=1.0))) as app:
        follow(app, budgets=with_fields(FIXED_BUDGETS, t_life_ms=200.0))
        everything(app)
        yield app


def rank(app: App, user: str, columns: object = LONG, **more: object) -> None:
    app.post("/v1/rank", {"user": user, "candidates": [1, 2], "history": columns, **more})


def everything(app: App) -> None:
    signal(app, "u", candidates=4)
    signal(app, "u", candidates=4)
    quiet(app)
    rank(app, "u")
    grown = events(110)
    rank(app, "grown", {name: values[:100] for name, values in grown.items()})
    rank(app, "grown", grown)
    rank(app, "cut", budget_ms=30)
    rank(app, "none", budget_ms=1)
    signal(app, "safe", SHORT, candidates=4)
    rank(app, "safe", SHORT)
    app.post("/v1/events", {"user": "late", "items": [1], "timestamps": [200]})
    app.post("/v1/events", {"user": "late", "items": [1], "timestamps": [100]})
    late(app)
    signal(app, "orphan", candidates=4)
    quiet(app)
    for number in range(40):
        rank(app, f"crowd-{number}")
        quiet(app)
    time.sleep(0.3)  # longer than a prefix is held
    signal(app, "crowd-0", candidates=4)
    quiet(app)


def late(app: App) -> None:
    """The engine takes longer than a request has."""
    engine = app.service.engine
    whole = engine.rank_batch

    def slow(requests: Sequence[RankRequest]) -> list[RankResult | RelayError]:
        time.sleep(0.1)
        return whole(requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "rank_batch", slow)
        app.call("POST", "/v1/rank", {"user": "slow", "candidates": [1], "history": LONG, "deadline_ms": 20})
        quiet(app)


def quiet(app: App) -> None:
    while feedback(app)["load"]:
        time.sleep(0.002)


def families(text: str) -> dict[str, set[str]]:
    """Names of the samples, by family."""
    found: dict[str, set[str]] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            family = line.split()[2]
            found[family] = set()
        elif not line.startswith("#"):
            found[family].add(re.split(r"[{ ]", line, maxsplit=1)[0])
    return found


def test_r35_every_metric_of_an_instance_has_samples(busy: App) -> None:
    shown = families(busy.call("GET", "/metrics").text)
    empty = {name for name in INSTANCE if not shown.get(f"relaygr_{name}")}
    # Nobody was cancelled, and timings of passes were too few to compare.
    assert empty <= {"cancelled_total", "latency_model_error_ratio"}, empty
    assert {f"relaygr_{name}" for name in empty} <= set(shown)


def test_r35_every_metric_of_a_router_is_there() -> None:
    members = (Member(id="a", url="http://127.0.0.1:1"), Member(id="b", url="http://127.0.0.1:2"))
    fleet = Fleet(Config(router=RouterConfig(members=members)))
    registry = CollectorRegistry()
    registry.register(RouterMetrics(fleet.router, Forwarder(fleet)))
    shown = families(generate_latest(registry).decode())
    assert {f"relaygr_{name}" for name in ROUTER} <= set(shown)


def test_r35_every_sample_says_the_model(busy: App) -> None:
    for line in busy.call("GET", "/metrics").text.splitlines():
        if not line.startswith("#"):
            assert 'model="' in line, line


@pytest.mark.parametrize(
    ("line", "least"),
    [
        ('requests_total{stage="rank",path="hit"}', 1),
        ('requests_total{stage="rank",path="resumed"}', 1),
        ('requests_total{stage="rank",path="truncated"}', 1),
        ('requests_total{stage="rank",path="degraded"}', 1),
        ('requests_total{stage="rank",path="full"}', 40),
        ('fallback_total{step="truncated"}', 1),
        ('fallback_total{step="degraded"}', 1),
        ('fallback_total{step="resume"}', 1),
        ('fallback_total{step="full"}', 40),
        ('trigger_decisions_total{reason="admitted"}', 3),
        ('trigger_decisions_total{reason="not_at_risk"}', 1),
        ('prefix_waste_total{cause="orphan"}', 1),
        ('prefix_lookups_total{lap="rank",result="device"}', 1),
        ('prefix_lookups_total{lap="rank",result="miss"}', 40),
        ('spill_total{result="stored"}', 5),
        ('copy_bytes_total{direction="d2h"}', 5 * 100 * 256),
        ('copy_bytes_total{direction="h2d"}', 100 * 256),
        ("reload_seconds_count", 1),
        ("epsilon_abs_count", 1),
        ("late_events_total", 1),
        ('deadline_missed_total{stage="rank"}', 1),
        ("trigger_decision_seconds_count", 5),
        ("lead_seconds_count", 2),
        ("preinfer_chunks_total", 4),
    ],
)
def test_what_happened_is_counted(busy: App, line: str, least: float) -> None:
    assert metric(busy, f"relaygr_{line}") >= least


def test_nothing_is_held_any_more_and_the_bound_is_told(busy: App) -> None:
    time.sleep(0.3)
    for state in ("reserved", "producing", "reloading", "ready", "pinned"):
        assert metric(busy, f'relaygr_relay_live_bytes{{state="{state}"}}') == 0
    assert metric(busy, "relaygr_relay_bound_bytes") == MIB
    assert metric(busy, "relaygr_relay_entries") == 0
    assert metric(busy, "relaygr_relay_build_enabled") == 1
    assert metric(busy, "relaygr_epsilon_abs_sum") <= 1e-5 * metric(busy, "relaygr_epsilon_abs_count")
    assert 0 < metric(busy, "relaygr_ready_before_rank_ratio") <= 1
