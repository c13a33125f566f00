"""The Prometheus series that are read when somebody scrapes: what waits, what is held, what is served."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relaygr import __version__
from relaygr.cache.interface import DiskStats, HostStats, Stats
from relaygr.engine.jobs import Load
from relaygr.engine.laps import RelayState
from relaygr.relay.ratios import ErrorRatio
from relaygr.serving.cache_gauges import CacheReadings, cache_metrics
from relaygr.serving.snapshot import ModelFacts

_STATM = Path("/proc/self/statm")

NOTHING = Load(0, 0, False)


@dataclass(frozen=True, slots=True)
class Readings:
    """The state of a service at one moment.

    Attributes:
        pool: of the device memory; None before a model is loaded.
        error: of the latency model; None without one.
        in_progress: HTTP requests.
        users, users_bytes: histories kept in memory.
        relay: what is held; None before a model is loaded.
        copied: bytes from and to host memory.
        cache: what the tiers are good for; None before a model is loaded.
    """

    load: Load = NOTHING
    pool: Stats | None = None
    error: ErrorRatio | None = None
    in_progress: int = 0
    users: int = 0
    users_bytes: int = 0
    relay: RelayState | None = None
    copied: tuple[int, int] = (0, 0)
    cache: CacheReadings | None = None


class Source(Protocol):
    """Where the readings come from."""

    @property
    def model(self) -> str: ...

    @property
    def facts(self) -> ModelFacts | None: ...

    @property
    def started_s(self) -> float: ...

    @property
    def utilisation(self) -> float: ...

    def readings(self) -> Readings: ...


class Gauges(Collector):
    """Reads its source once a scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering does not read a service that is not there yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        now, model = self._source.readings(), self._source.model
        yield _gauge(
            "queue_depth", "Waiting work", model, {"rank": now.load.ranks, "prefix": now.load.flights}
        )
        yield _one("requests_in_progress", "HTTP requests in progress", model, now.in_progress)
        text = "Share of the last minute that the engine computed"
        yield _one("slot_utilisation", text, model, self._source.utilisation)
        yield _one("user_histories", "Users whose history is in memory", model, now.users)
        yield _one("user_history_bytes", "Memory of these histories", model, now.users_bytes)
        if now.error is not None:
            text = "Mean of |measured / predicted - 1| over recent passes"
            yield _one("latency_model_error_ratio", text, model, now.error.mean_error)
        if now.pool is not None:
            yield from _pool(now.pool, model)
            if now.pool.host is not None:
                yield from _host(now.pool.host, now.copied, model)
            if now.pool.disk is not None:
                yield from _disk(now.pool.disk, model)
        if now.relay is not None:
            yield from _relay(now.relay, model)
        if now.cache is not None:
            yield from cache_metrics(now.cache, model)
        yield from self._process(model)
        if (facts := self._source.facts) is not None:
            yield from _model(facts, model)

    def _process(self, model: str) -> Iterator[Metric]:
        yield _one(
            "start_timestamp_seconds", "When the process started, Unix time", model, self._source.started_s
        )
        if (resident := _resident_bytes()) is not None:
            yield _one("resident_bytes", "Memory of the process", model, resident)
        info = GaugeMetricFamily("relaygr_build_info", "The version, always 1", labels=("model", "version"))
        info.add_metric((model, __version__), 1)
        yield info


def _pool(pool: Stats, model: str) -> Iterator[Metric]:
    states = {
        "pinned": pool.pinned_bytes,
        "evictable": pool.evictable_pages * pool.page_bytes,
        "free": pool.free_bytes,
    }
    yield _gauge("device_bytes", "Device memory of prefixes", model, states, "state")
    yield _one("device_entries", "Prefixes on the device", model, pool.entries)
    yield _total("lease_overdue_total", "Leases not given back in time", model, pool.overdue)


def _host(host: HostStats, copied: tuple[int, int], model: str) -> Iterator[Metric]:
    states = {
        "pinned": host.pinned_chunks * host.chunk_bytes,
        "evictable": host.evictable_chunks * host.chunk_bytes,
        "free": host.free_chunks * host.chunk_bytes,
    }
    yield _gauge("host_bytes", "Host memory of prefixes", model, states, "state")
    yield _total("host_evictions_total", "Prefixes evicted from host memory", model, host.evictions)
    yield _one("reload_inflight", "Copies between host and device that are under way", model, host.moving)
    spills = {"stored": host.stores, "superseded": host.superseded, "refused": host.refused}
    yield _counts("spill_total", "Prefixes to be copied to host memory", model, "result", spills)
    directions = dict(zip(("h2d", "d2h"), copied, strict=True))
    yield _counts("copy_bytes_total", "Bytes copied between host and device", model, "direction", directions)
    yield _total("build_mismatch_total", "Host entries that were not what was stored", model, host.damaged)
    if host.restored:
        yield _one("restored_entries", "Prefixes from the snapshot at the start", model, host.restored)


def _disk(disk: DiskStats, model: str) -> Iterator[Metric]:
    states = {
        "live": disk.live_bytes,
        "dead": disk.used_bytes - disk.live_bytes,
        "free": disk.total_bytes - disk.used_bytes,
    }
    yield _gauge("disk_bytes", "Files of prefixes", model, states, "state")
    yield _one("disk_entries", "Prefixes on disk", model, disk.entries)
    yield _one("disk_index_bytes", "Memory for what is on disk", model, disk.index_bytes)
    yield _one("disk_off", "Whether nothing is written to disk any more", model, bool(disk.off))
    ends = {
        "saved": disk.saves,
        "fetched": disk.fetches,
        "refused": disk.refused,
        "failed": disk.failures,
        "damaged": disk.damaged,
        "torn": disk.torn,
    }
    yield _counts("disk_transfers_total", "Prefixes to and from disk", model, "result", ends)


def _relay(relay: RelayState, model: str) -> Iterator[Metric]:
    states = dict(relay.live_bytes)
    yield _gauge("relay_live_bytes", "Device memory of prefixes that are held", model, states, "state")
    yield _one("relay_bound_bytes", "The most that may be held", model, relay.bound_bytes)
    yield _one("relay_entries", "Prefixes that are held", model, relay.entries)
    yield _one("relay_build_enabled", "Whether the relay is on for the model", model, relay.enabled)
    yield _one("lead_p10_seconds", "Time until ranking that all but few have", model, relay.lead_ms / 1000)
    yield _one("t_life_seconds", "How long a prefix is held", model, relay.t_life_ms / 1000)
    yield _one("return_ratio", "Share of visits followed by another of the user", model, relay.return_ratio)
    skipped = dict(relay.reloads_skipped)
    yield _counts("reload_skipped_total", "Reloads that were not worth it", model, "reason", skipped)
    known = {
        "ready_before_rank_ratio": (relay.ready_ratio, "Share of rankings that found their prefix complete"),
        "trigger_at_risk_precision": (relay.precision, "Of requests called at risk, the share that was"),
        "trigger_at_risk_recall": (relay.recall, "Of requests at risk, the share that was called so"),
    }
    for name, (value, text) in known.items():
        if value is not None:
            yield _one(name, text, model, value)


def _model(facts: ModelFacts, model: str) -> Iterator[Metric]:
    labels = ("model", "name", "fingerprint", "dtype", "kernel")
    info = GaugeMetricFamily("relaygr_model_info", "What is served, always 1", labels=labels)
    info.add_metric((model, facts.name, facts.fingerprint, facts.dtype, facts.kernel), 1)
    yield info
    yield _one("model_loaded_timestamp_seconds", "When it was loaded, Unix time", model, facts.loaded_s)


def _gauge(name: str, text: str, model: str, values: dict[str, int], label: str = "class") -> Metric:
    family = GaugeMetricFamily(f"relaygr_{name}", text, labels=("model", label))
    for value, amount in values.items():
        family.add_metric((model, value), amount)
    return family


def _one(name: str, text: str, model: str, amount: float) -> Metric:
    family = GaugeMetricFamily(f"relaygr_{name}", text, labels=("model",))
    family.add_metric((model,), amount)
    return family


def _total(name: str, text: str, model: str, amount: int) -> Metric:
    family = CounterMetricFamily(f"relaygr_{name}", text, labels=("model",))
    family.add_metric((model,), amount)
    return family


def _counts(name: str, text: str, model: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"relaygr_{name}", text, labels=("model", label))
    for value, amount in values.items():
        family.add_metric((model, value), amount)
    return family


def _resident_bytes() -> int | None:
    """None where the system does not tell."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
