"""The Prometheus families that are counted as things happen, and their members by model."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.metrics import MetricWrapperBase

MODELS_MAX = 4
VALUES_MAX = 256
OTHER = "other"
NO_MODEL = "none"
DIGITS = 12

_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.025, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10),
)
_DECISIONS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01)
_TOKENS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

Family = TypeVar("Family", bound=MetricWrapperBase)


class Members(Generic[Family]):
    """One family's children of one model, by the other labels; looked up once, then a dictionary away.

    More than `VALUES_MAX` combinations end in one whose labels are all "other".
    """

    def __init__(self, family: Family, model: str) -> None:
        self._family, self._model = family, model
        self._others = len(family._labelnames) - 1
        self._found: dict[tuple[str, ...], Family] = {}

    def __call__(self, *values: str) -> Family:
        found = self._found.get(values)
        if found is None:
            if len(self._found) >= VALUES_MAX:
                values = (OTHER,) * self._others
            found = self._found[values] = self._family.labels(self._model, *values)
        return found


class Families:
    """Every counted family; the first label of each is `model`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.all: list[MetricWrapperBase] = []
        counter, histogram = self._counter, self._histogram
        self.requests = counter(
            "requests_total", "Rank requests by path, prefix signals by admission", "stage", "path"
        )
        self.rank_latency = histogram("rank_latency_seconds", "From the queue to the scores", "path")
        self.lap_queue = histogram("lap_queue_seconds", "From the queue to the first work on it", "class")
        self.slo_ok = counter("slo_ok_total", "Ranked with the whole history within the budget", "path")
        self.deadline_missed = counter("deadline_missed_total", "Ended by their deadline", "stage")
        self.cancelled = counter("cancelled_total", "Ended because nobody waited any more", "stage")
        self.failed = counter("failed_total", "Ended in another error", "stage", "kind")
        self.decisions = counter("trigger_decisions_total", "Prefix signals by what became of them", "reason")
        self.lookups = counter("prefix_lookups_total", "What the cache had", "lap", "result")
        self.joins = counter("flight_joins_total", "Signals that joined a prefix on its way")
        self.preinfer = histogram("preinfer_seconds", "A prefix, from its signal to the cache")
        self.chunk = histogram("preinfer_chunk_seconds", "One step of a prefix")
        self.chunks = counter("preinfer_chunks_total", "Steps of prefixes")
        self.served_tokens = histogram("served_tokens", "History tokens of a ranked request", buckets=_TOKENS)
        self.tokens = counter("history_tokens_total", "History tokens by where they came from", "source")
        self.fallback = counter("fallback_total", "Ranked without the whole prefix in the cache", "step")
        self.decision = histogram(
            "trigger_decision_seconds", "From a signal to its decision", buckets=_DECISIONS
        )
        self.lead = histogram("lead_seconds", "From a signal to its ranking")
        self.reload = histogram(
            "reload_seconds", "A prefix, from its signal to the device, out of host memory"
        )
        self.waste = counter("prefix_waste_total", "Prefixes that were held and not read", "cause")
        self.epsilon = Summary(
            "relaygr_epsilon_abs",
            "Difference of cached and uncached scores, as a share of the largest above 1",
            ("model",),
            registry=registry,
        )
        self.all.append(self.epsilon)
        self.breaches = counter("epsilon_breaches_total", "Builds that the relay was turned off for")
        self.events = counter("events_total", "Events appended")
        self.late_events = counter("late_events_total", "Appended events older than the one before")
        self.disconnects = counter("disconnects_total", "Clients that went away while they waited", "stage")
        self.http_requests = counter("http_requests_total", "HTTP answers", "route", "status")
        self.http_seconds = histogram("http_request_seconds", "From the request to the answer", "route")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        family = Counter(f"relaygr_{name}", text, ("model", *labels), registry=self._registry)
        self.all.append(family)
        return family

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS
    ) -> Histogram:
        family = Histogram(
            f"relaygr_{name}", text, ("model", *labels), registry=self._registry, buckets=buckets
        )
        self.all.append(family)
        return family


class Series:
    """Every member of one model; families without further labels have their one member from the start."""

    def __init__(self, families: Families, model: str) -> None:
        self.model = model
        self.requests = Members(families.requests, model)
        self.rank_latency = Members(families.rank_latency, model)
        self.lap_queue = Members(families.lap_queue, model)
        self.slo_ok = Members(families.slo_ok, model)
        self.deadline_missed = Members(families.deadline_missed, model)
        self.cancelled = Members(families.cancelled, model)
        self.failed = Members(families.failed, model)
        self.decisions = Members(families.decisions, model)
        self.lookups = Members(families.lookups, model)
        self.tokens = Members(families.tokens, model)
        self.fallback = Members(families.fallback, model)
        self.disconnects = Members(families.disconnects, model)
        self.http_requests = Members(families.http_requests, model)
        self.http_seconds = Members(families.http_seconds, model)
        self.joins = families.joins.labels(model)
        self.preinfer = families.preinfer.labels(model)
        self.chunk = families.chunk.labels(model)
        self.chunks = families.chunks.labels(model)
        self.served_tokens = families.served_tokens.labels(model)
        self.waste = Members(families.waste, model)
        self.decision = families.decision.labels(model)
        self.lead = families.lead.labels(model)
        self.reload = families.reload.labels(model)
        self.epsilon = families.epsilon.labels(model)
        self.breaches = families.breaches.labels(model)
        self.events = families.events.labels(model)
        self.late_events = families.late_events.labels(model)


class SeriesByModel:
    """The series of the last `MODELS_MAX` models; those of older ones are dropped. Usable from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = Families(registry)
        self._lock = threading.Lock()
        self._found: dict[bytes, Series] = {}

    def of(self, fingerprint: bytes) -> Series:
        """The series of a model; of no model where the fingerprint is empty."""
        found = self._found.get(fingerprint)
        if found is not None:
            return found
        with self._lock:
            if fingerprint in self._found:
                return self._found[fingerprint]
            while len(self._found) >= MODELS_MAX:
                self._drop(next(iter(self._found)))
            found = Series(self._families, fingerprint.hex()[:DIGITS] or NO_MODEL)
            self._found[fingerprint] = found
        return found

    def _drop(self, fingerprint: bytes) -> None:
        dropped = self._found.pop(fingerprint)
        for family in self._families.all:
            family.remove_by_labels({"model": dropped.model})
