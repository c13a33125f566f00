"""What the series of the tiers say of rankings whose history was on the device, in the host, nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from metric_cases import CACHE
from msgspec.structs import replace
from relay_apps import metric, quiet
from serving_apps import App, events, running, settings

from relaygr.config.host import HostConfig
from relaygr.config.settings import Config
from relaygr.core.units import MIB
from relaygr.serving.cache_gauges import cache_metrics

HISTORY = events(100)
NAMES = {
    *("requests_total", "tokens_total", "cost_ms_total", "whole_total", "ceiling_ratio", "decision_total"),
    *("bandwidth_bytes_per_second", "bytes_total", "failed_loads_total", "late_loads_total"),
    *("evictions_total", "lost_tokens_total", "pages", "host_run_chunks", "lease_age_seconds"),
    *("lease_overdue_total", "checksum_failures_total", "restore_rejected_total", "load_seconds"),
    *("host_runs_mean", "shadow_cost_hit_ratio", "drift_abs"),
}
# Of every series, beside the model's; "" is none.
LABELS = {
    **dict.fromkeys(("requests", "tokens", "cost_ms"), "tier visit use"),
    **dict.fromkeys(("whole", "ceiling_ratio"), "kind"),
    **dict.fromkeys(("bytes", "bandwidth_bytes_per_second"), "direction"),
    **dict.fromkeys(("late_loads", "load_seconds", "lost_tokens", "restore_rejected"), ""),
    **dict.fromkeys(("lease_age_seconds", "lease_overdue", "drift_abs"), ""),
    **dict.fromkeys(("host_runs_mean", "host_run_chunks"), ""),
    "decision": "way",
    "evictions": "tier cause",
    "pages": "tier state",
    "checksum_failures": "tier",
    "failed_loads": "reason",
    "shadow_cost_hit_ratio": "policy sample",
}


def with_host(folder: Path, **host: object) -> Config:
    return replace(
        settings(folder), host=HostConfig(host_bytes=MIB, run_chunk_tokens=32, load="always", **host)
    )


def rank(app: App, user: str, count: int = 100) -> None:
    history = {name: values[:count] for name, values in HISTORY.items()}
    app.post("/v1/rank", {"user": user, "candidates": [1, 2], "history": history})


def spill(app: App) -> None:
    while app.service.engine.spill_step(1.0, 1 << 30, lambda _: True):
        pass


def kind(app: App, name: str, tier: str, visit: str, use: str = "used") -> float:
    return metric(app, f'relaygr_cache_{name}{{tier="{tier}",visit="{visit}",use="{use}"}}')


def test_m33_hits_by_tier_and_visit_with_their_ceilings(model_folder: Path) -> None:
    with running(with_host(model_folder)) as app:
        rank(app, "one", 80)
        rank(app, "one", 90)
        spill(app)
        rank(app, "one", 100)
        rank(app, "two")
        quiet(app)
        assert kind(app, "requests_total", "none", "first") == 2
        assert kind(app, "requests_total", "device", "returning") == 1
        assert kind(app, "requests_total", "host", "returning") == 1
        assert kind(app, "tokens_total", "device", "returning") == 80
        assert kind(app, "tokens_total", "host", "returning") == 90
        assert kind(app, "cost_ms_total", "host", "returning") > 0
        assert metric(app, 'relaygr_cache_whole_total{kind="token"}') == 370
        assert metric(app, 'relaygr_cache_ceiling_ratio{kind="request"}') == pytest.approx(2 / 4)
        assert metric(app, 'relaygr_cache_ceiling_ratio{kind="token"}') == pytest.approx(170 / 370)
        assert 0 < metric(app, 'relaygr_cache_ceiling_ratio{kind="cost"}') < 1
        assert metric(app, 'relaygr_cache_decision_total{way="load"}') == 1
        assert metric(app, 'relaygr_cache_bandwidth_bytes_per_second{direction="h2d"}') > 0
        assert metric(app, "relaygr_cache_load_seconds_count") == 1


def test_the_passes_of_the_start_are_no_decisions(model_folder: Path) -> None:
    with running(with_host(model_folder)) as app:
        ways = ("load", "split", "recompute", "device")
        assert [metric(app, f'relaygr_cache_decision_total{{way="{way}"}}') for way in ways] == [0, 0, 0, 0]
        rank(app, "one", 80)
        rank(app, "one", 90)
        quiet(app)
        assert metric(app, 'relaygr_cache_decision_total{way="device"}') == 1


def test_a_signal_counts_as_the_visit_of_its_ranking(model_folder: Path) -> None:
    """What was computed ahead was not in the cache when the user came."""
    with running(with_host(model_folder)) as app:
        body = {"user": "one", "history": HISTORY, "candidates": 2}
        answer = app.post("/v1/prefix", body)
        quiet(app)
        rank(app, "one")
        quiet(app)
        assert answer["admission"] in {"admitted", "rejected"}
        assert kind(app, "requests_total", "none", "first") == 1
        assert kind(app, "requests_total", "device", "first") == 0


def test_m33_each_series_has_its_labels() -> None:
    found = {
        family.name.removeprefix("relaygr_cache_"): {tuple(sample.labels) for sample in family.samples}
        for family in cache_metrics(CACHE, "ranker")
    }
    assert found == {name: {("model", *labels.split())} for name, labels in LABELS.items()}


def test_m33_every_series_and_a_deleted_user(model_folder: Path) -> None:
    config = with_host(model_folder, host_dtype="int8", shadow_policies=("lru", "gdsf"), shadow_share=1.0)
    with running(config) as app:
        for _ in range(3):
            rank(app, "one")
            spill(app)
        quiet(app)
        text = app.call("GET", "/metrics").text
        found = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE relaygr_cache_")}
        bare = {name.removeprefix("relaygr_cache_") for name in found}
        assert {name.removesuffix("_total") for name in NAMES} <= {
            name.removesuffix("_total") for name in bare
        }
        hits = metric(app, 'relaygr_cache_shadow_cost_hit_ratio{policy="lru"}')
        assert hits == pytest.approx(2 / 3)
        assert 0 < metric(app, "relaygr_cache_drift_abs") < 0.01
        app.call("DELETE", "/v1/users/one")
        rank(app, "one")
        quiet(app)
        assert kind(app, "requests_total", "none", "first") == 2, "remembered as nobody"
