"""The Prometheus series of what the tiers hold and of what left them, by tier."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from relaygr.cache.interface import HostStats, Stats


def tier_metrics(pool: Stats, model: str) -> Iterator[Metric]:
    yield _pages(pool, model)
    yield _evictions(pool, model)
    yield _checksums(pool, model)
    yield _count("lease_overdue_total", "Leases not given back in time", model, pool.overdue)
    if pool.host is not None:
        yield from _host(pool.host, model)


def _pages(pool: Stats, model: str) -> Metric:
    family = GaugeMetricFamily("relaygr_cache_pages", "Pages of a tier", labels=("model", "tier", "state"))
    states = {"pinned": pool.pinned_pages, "evictable": pool.evictable_pages, "free": pool.free_pages}
    for state, pages in states.items():
        family.add_metric((model, "device", state), pages)
    if pool.host is not None and pool.page_tokens:
        each = pool.host.chunk_tokens // pool.page_tokens
        chunks = {
            "pinned": pool.host.pinned_chunks,
            "evictable": pool.host.evictable_chunks,
            "free": pool.host.free_chunks,
        }
        for state, count in chunks.items():
            family.add_metric((model, "host", state), count * each)
    return family


def _evictions(pool: Stats, model: str) -> Metric:
    text, labels = "States that left a tier, by cause", ("model", "tier", "cause")
    family = CounterMetricFamily("relaygr_cache_evictions_total", text, labels=labels)
    tiers = {"device": pool, "host": pool.host, "disk": pool.disk}
    for tier, stats in tiers.items():
        for cause, count in stats.departures if stats is not None else ():
            family.add_metric((model, tier, cause.value), count)
    return family


def _checksums(pool: Stats, model: str) -> Metric:
    text = "States whose bytes were not what was stored"
    family = CounterMetricFamily("relaygr_cache_checksum_failures_total", text, labels=("model", "tier"))
    for tier, stats in (("host", pool.host), ("disk", pool.disk)):
        if stats is not None:
            family.add_metric((model, tier), stats.damaged)
    return family


def _host(host: HostStats, model: str) -> Iterator[Metric]:
    runs = host.runs / host.entries if host.entries else 0.0
    yield _gauge("host_runs_mean", "Stretches of host memory that a state lies in", model, runs)
    chunks = (host.total_chunks - host.free_chunks) / host.runs if host.runs else 0.0
    yield _gauge("host_run_chunks", "Chunks of such a stretch, on average", model, chunks)
    yield _count("lost_tokens_total", "Tokens evicted that no tier held", model, host.lost_tokens)
    text = "Snapshots that were not used"
    yield _count("restore_rejected_total", text, model, host.restore_rejected)


def _gauge(name: str, text: str, model: str, amount: float) -> Metric:
    family = GaugeMetricFamily(f"relaygr_cache_{name}", text, labels=("model",))
    family.add_metric((model,), amount)
    return family


def _count(name: str, text: str, model: str, amount: int) -> Metric:
    family = CounterMetricFamily(f"relaygr_cache_{name}", text, labels=("model",))
    family.add_metric((model,), amount)
    return family
