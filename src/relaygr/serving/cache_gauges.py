"""The Prometheus series of the tiers: hits by tier and kind of visit, ceilings, copies, policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from relaygr.cache.interface import Stats
from relaygr.cache.tally import Counts
from relaygr.engine.courier import CopyStats
from relaygr.memory.lane import LaneStats
from relaygr.serving.cache_watch import Watched
from relaygr.serving.tier_gauges import tier_metrics

_KINDS = ("model", "tier", "visit", "use")


@dataclass(frozen=True, slots=True)
class CacheReadings:
    """The tiers at one moment.

    Attributes:
        decisions: about the tokens of the host, by what was done.
        copies: between device and host.
        copied: bytes to the device and from it; disk_bytes: from and to disk.
        disk_missing: whether a disk tier is wanted and could not be opened.
        drift: of the host format, as a share of probability; None where it is exact.
        lease_s: age of the oldest lease; None without one.
        pool: what the books hold; None before there are any.
    """

    watched: Watched
    decisions: tuple[tuple[str, int], ...]
    copies: CopyStats
    copied: tuple[int, int]
    disk_bytes: tuple[int, int]
    disk_missing: bool
    drift: float | None
    lease_s: float | None
    pool: Stats | None


def cache_metrics(now: CacheReadings, model: str) -> Iterator[Metric]:
    yield from _hits(now.watched.counts, model)
    decisions = _counter("decision_total", "Rankings by what was done about host tokens", ("model", "way"))
    for way, count in now.decisions:
        decisions.add_metric((model, way), count)
    yield decisions
    yield from _copies(now, model)
    if now.disk_missing:
        off = GaugeMetricFamily("relaygr_disk_off", "Whether nothing is written to disk", labels=("model",))
        off.add_metric((model,), 1)
        yield off
    yield _gauge("lease_age_seconds", "Age of the oldest lease; 0 without any", model, now.lease_s or 0.0)
    if now.drift is not None:
        yield _gauge("drift_abs", "Most that the host format moved a probability", model, now.drift)
    if now.pool is not None:
        yield from tier_metrics(now.pool, model)
    yield from _shadows(now.watched, model)


def _hits(counts: Counts, model: str) -> Iterator[Metric]:
    requests = _counter("requests_total", "Rankings by where their history was", _KINDS)
    tokens = _counter("tokens_total", "History tokens that were reused", _KINDS)
    cost = _counter("cost_ms_total", "Computing that was saved, milliseconds", _KINDS)
    for kind, sums in sorted(counts.kinds.items()):
        labels = (model, kind.tier.value, kind.visit.value, kind.use.value)
        requests.add_metric(labels, sums.requests)
        tokens.add_metric(labels, sums.tokens)
        cost.add_metric(labels, sums.cost_ms)
    yield from (requests, tokens, cost)
    whole = _counter("whole_total", "What there was to hit, by kind", ("model", "kind"))
    for name, amount in (
        ("request", counts.all.requests),
        ("token", counts.all.tokens),
        ("cost", counts.all.cost_ms),
    ):
        whole.add_metric((model, name), amount)
    yield whole
    if counts.ceilings is not None:
        text = "Share that a cache without limits would have hit, by kind"
        ceiling = GaugeMetricFamily("relaygr_cache_ceiling_ratio", text, labels=("model", "kind"))
        for name, ratio in counts.ceilings._asdict().items():
            ceiling.add_metric((model, name), ratio)
        yield ceiling


def _copies(now: CacheReadings, model: str) -> Iterator[Metric]:
    copies = now.copies
    lanes = {"h2d": copies.h2d, "d2h": copies.d2h}
    speed = GaugeMetricFamily(
        "relaygr_cache_bandwidth_bytes_per_second", "Of copies while they run", labels=("model", "direction")
    )
    for direction, lane in lanes.items():
        if isinstance(lane, LaneStats) and lane.busy_s > 0:
            speed.add_metric((model, direction), lane.bytes_total / lane.busy_s)
    if speed.samples:
        yield speed
    if isinstance(copies.h2d, LaneStats) and copies.h2d.done:
        text = "Copies from host memory that a ranking used"
        spent = SummaryMetricFamily("relaygr_cache_load_seconds", text, labels=("model",))
        spent.add_metric((model,), copies.h2d.done, copies.h2d.busy_s)
        yield spent
    moved = _counter("bytes_total", "Bytes copied between tiers", ("model", "direction"))
    for direction, nbytes in zip(("h2d", "d2h", "read", "write"), now.copied + now.disk_bytes, strict=True):
        moved.add_metric((model, direction), nbytes)
    yield moved
    late = _counter("late_loads_total", "Loads that came too late for their ranking", ("model",))
    late.add_metric((model,), copies.late_loads)
    yield late
    loads = _counter("failed_loads_total", "Loads that a ranking did without", ("model", "reason"))
    for reason, count in (("failed", copies.failed_loads), ("declined", copies.declined_loads)):
        loads.add_metric((model, reason), count)
    yield loads


def _shadows(watched: Watched, model: str) -> Iterator[Metric]:
    ratio = GaugeMetricFamily(
        "relaygr_cache_shadow_cost_hit_ratio",
        "Share of computing that a policy would save; too_small where the sample cannot tell",
        labels=("model", "policy", "sample"),
    )
    for report in watched.shadows:
        sample = "enough" if report.is_enough else "too_small"
        ratio.add_metric((model, report.policy, sample), report.cost_hit)
    if watched.shadows:
        yield ratio


def _counter(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"relaygr_cache_{name}", text, labels=labels)


def _gauge(name: str, text: str, model: str, amount: float) -> Metric:
    family = GaugeMetricFamily(f"relaygr_cache_{name}", text, labels=("model",))
    family.add_metric((model,), amount)
    return family
