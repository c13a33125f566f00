"""Dashboard and alerts ask only for metrics, labels and values that a running service has."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from generation_metric_cases import tell_generation
from live_service import Live, Traffic, live_service
from metric_cases import tell_everything
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from promql import Selector, parse_expression
from slate_metric_cases import tell_slates
from stream_metric_cases import told_counts

from relaygr.core.clock import ManualClock
from relaygr.listwise.request import Mode
from relaygr.serving.generation.metrics import GenerateMetrics
from relaygr.serving.metrics import Metrics
from relaygr.serving.recent import Recent
from relaygr.serving.slate.metrics import SlateMetrics
from relaygr.serving.stream.counts import StreamMetrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# Prometheus gives these to every series of a target.
TARGET = {"instance", "job"}
# Metrics that an undisturbed service without a latency model has no sample of.
UNDISTURBED = {
    "relaygr_deadline_missed", "relaygr_cancelled", "relaygr_failed", "relaygr_disconnects",
    "relaygr_latency_model_error_ratio", "relaygr_prefix_waste",
    "relaygr_trigger_at_risk_precision", "relaygr_trigger_at_risk_recall",
}  # fmt: skip
Labels = dict[str, set[str]]


class Catalogue:
    """Samples by name: their type and the values of their labels."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self.labels: dict[str, Labels] = {}

    def add(self, families: Iterator[Metric]) -> None:
        for family in families:
            for sample in family.samples:
                self.types[sample.name] = family.type
                values = self.labels.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    values.setdefault(label, set()).add(value)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_service() as live, Traffic(live.url) as traffic:
        while traffic.rounds < 15 and not traffic.errors:
            time.sleep(0.05)
        assert traffic.errors == []
        yield live


def scraped(live: Live) -> list[Metric]:
    answer = httpx.get(f"{live.url}/metrics", timeout=30)
    assert answer.status_code == 200
    return list(text_string_to_metric_families(answer.text))


@pytest.fixture(scope="module")
def catalogue(live: Live) -> Catalogue:
    """What the running service has, and what it would have after every kind of mishap."""
    found = Catalogue()
    found.add(iter(scraped(live)))
    told = Metrics(ManualClock(1000.0))
    tell_everything(told, 1000.0)
    found.add(told.registry.collect())
    generation = CollectorRegistry()
    tell_generation(GenerateMetrics(generation))
    found.add(generation.collect())
    slates = CollectorRegistry()
    tell_slates(
        SlateMetrics(slates, Recent(ManualClock(1000.0)), lambda: "0" * 32, lambda: 0, lambda: Mode.ON, 30)
    )
    found.add(slates.collect())
    found.add(StreamMetrics(told_counts()).collect())
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [*panels, *(rule["expr"] for rule in alerts())]


def test_every_metric_is_fed_by_traffic_alone(live: Live) -> None:
    empty = {family.name for family in scraped(live) if not family.samples}
    assert empty <= UNDISTURBED
    model = live.service.served.model[:12]
    ranked = next(family for family in scraped(live) if family.name == "relaygr_requests")
    assert {sample.labels["model"] for sample in ranked.samples} == {model}


@pytest.mark.parametrize("text", expressions())
def test_an_expression_asks_for_what_there_is(catalogue: Catalogue, text: str) -> None:
    expression = parse_expression(text)
    selectors = [one for one in expression.selectors if one.metric != "up"]
    assert expression.selectors, f"no metric in {text}"
    for selector in selectors:
        check(catalogue, selector)
    known = TARGET.union(*(catalogue.labels[one.metric] for one in selectors))
    assert expression.grouped_by <= known
    if "histogram_quantile" in text:
        assert "le" in expression.grouped_by


def check(catalogue: Catalogue, selector: Selector) -> None:
    assert selector.metric in catalogue.types, f"there is no {selector.metric}"
    labels = catalogue.labels[selector.metric]
    for label, operator, value in selector.matchers:
        assert label in labels or label in TARGET, f"{selector.metric} has no label {label}"
        if operator == "=" and label not in TARGET:
            assert value in labels[label], f"{selector.metric} has no {label}={value}"
    kind = catalogue.types[selector.metric]
    counts = kind == "counter" or (
        kind in ("histogram", "summary") and selector.metric.endswith(("_bucket", "_sum", "_count"))
    )
    inside = set(selector.inside) & {"rate", "increase"}
    assert counts == bool(inside) == selector.over_range, f"{selector.metric} is a {kind}"


def test_the_dashboard_shows_every_metric(catalogue: Catalogue) -> None:
    asked = {one.metric for text in expressions() for one in parse_expression(text).selectors}
    families = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in asked}
    missing = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in catalogue.types} - families
    assert missing == set()


def test_the_dashboard_is_whole() -> None:
    found = dashboard()
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= 24
        cells = {(where["x"] + x, where["y"] + y) for x in range(where["w"]) for y in range(where["h"])}
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
    names = {variable["name"] for variable in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(found["panels"])))
    assert used - {"__rate_interval"} == names


def test_variables_ask_for_labels_that_there_are(catalogue: Catalogue) -> None:
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert found is not None
            assert found[2] in catalogue.labels[found[1]].keys() | TARGET


def test_legends_name_labels_that_the_series_keep(catalogue: Catalogue) -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = parse_expression(target["expr"])
            kept = expression.grouped_by
            if "sum" not in target["expr"] and "max" not in target["expr"]:
                kept = TARGET.union(*(catalogue.labels[one.metric] for one in expression.selectors))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, target["expr"]


def test_prometheus_scrapes_the_default_address_and_reads_the_alerts() -> None:
    found = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = found["scrape_configs"]
    assert job["job_name"] == "relaygr"
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8080"]
    assert all((DEPLOY / name).exists() for name in found["rule_files"])
    assert all(rule["annotations"]["summary"] for rule in alerts())


@pytest.mark.parametrize(
    "text", ["rate(relaygr_x[5m]", "nosuch(relaygr_x)", "sum by relaygr_x", "relaygr_x{a=b}", "relaygr_x # y"]
)
def test_what_the_reader_does_not_understand_is_an_error(text: str) -> None:
    with pytest.raises((AssertionError, StopIteration, IndexError)):
        parse_expression(text)


def test_every_metric_is_in_the_manual(catalogue: Catalogue) -> None:
    manual = (DEPLOY.parent / "docs" / "operating.md").read_text()
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in catalogue.types}
    assert {name for name in names if f"`{name.removeprefix('relaygr_')}`" not in manual} == set()
