"""What the service counts, as Prometheus series and as the numbers behind the status page.

Every series has the label `model`, the first twelve digits of the fingerprint of the weights that served.
Users and tenants are never labels. Only what this version feeds has a name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import (
    BackendError,
    CancelledError,
    DeadlineError,
    NotReadyError,
    OverloadError,
    RelayError,
    RequestError,
)
from relaygr.engine.jobs import Admission, Flight, PrefixAnswer, RankJob
from relaygr.engine.requests import Path, PrefetchResult, RankResult
from relaygr.relay.holds import Cause
from relaygr.relay.trigger import Verdict
from relaygr.serving.answers import path_of
from relaygr.serving.gauges import Gauges, Readings
from relaygr.serving.recent import Recent
from relaygr.serving.series import OTHER, Series, SeriesByModel
from relaygr.serving.snapshot import Generation, ModelFacts, Slates, State, Status
from relaygr.serving.stream.counts import StreamStatus
from relaygr.serving.summary import summary

# Why a prefix signal was refused, and what the scheduler says itself.
REASONS = frozenset(
    (
        *("disabled", "metadata", "not_reusable", "not_at_risk", "no_benefit", "too_late"),
        *("hot_key", "no_instance", "footprint", "rate", "load", "queue_full"),
    )
)
_FALLBACKS = {Path.FULL: "full", Path.RESUMED: "resume"}
_KINDS: tuple[tuple[type[RelayError], str], ...] = (
    (RequestError, "request"),
    (OverloadError, "overload"),
    (NotReadyError, "not_ready"),
    (BackendError, "backend"),
)
_NO_MODEL = b""


class Metrics:
    """Counts what it is told; may be told from any thread. Hears the scheduler as its observer.

    Attributes:
        registry: of its own, so that nothing else in the process is exported.
    """

    def __init__(self, clock: Clock | None = None, wall_s: Callable[[], float] = time.time) -> None:
        # Else every counter comes with the time it was made, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._clock = clock or MonotonicClock()
        self._wall_s, self._start_s = wall_s, self._clock.now_s()
        self._recent = Recent(self._clock)
        self._models = SeriesByModel(self.registry)
        self._series = self._models.of(_NO_MODEL)
        self._facts: ModelFacts | None = None
        self._budget_s: float | None = None
        self._computed_until_s = 0.0
        self._read: Callable[[], Readings] = Readings
        self.registry.register(Gauges(self))

    @property
    def model(self) -> str:
        """The label of what is served now."""
        return self._series.model

    @property
    def recent(self) -> Recent:
        """The last minutes, for others that count into them."""
        return self._recent

    @property
    def facts(self) -> ModelFacts | None:
        return self._facts

    @property
    def started_s(self) -> float:
        """Unix time."""
        return self._wall_s() - self.uptime_s

    @property
    def uptime_s(self) -> float:
        return self._clock.now_s() - self._start_s

    @property
    def utilisation(self) -> float:
        """Share of the last minute that the engine computed; at most 1."""
        return min(self._recent.seconds("computed", 60.0) / self._recent.covered_s(60.0), 1.0)

    def serve(self, facts: ModelFacts, rank_budget_ms: float | None = None) -> None:
        """Tell which model is served from now on, and within what time ranking should answer.

        Without a budget, a request's own deadline counts.
        """
        self._series = self._models.of(bytes.fromhex(facts.fingerprint))
        self._facts = facts
        self._budget_s = None if rank_budget_ms is None else rank_budget_ms / 1000

    def read_from(self, source: Callable[[], Readings]) -> None:
        """Where to look, at every scrape and every status, for what waits and is held."""
        self._read = source

    def readings(self) -> Readings:
        return self._read()

    def ranked(self, job: RankJob, result: RankResult) -> None:
        served = result.served
        path = path_of(job, result)
        latency_s, series = job.done_s - job.queued_s, self._models.of(served.model)
        series.requests("rank", path).inc()
        series.rank_latency(path).observe(latency_s)
        series.lap_queue("rank").observe(max(job.started_s - job.queued_s, 0.0))
        names = ["ranked"]
        limit_s = self._budget_s if self._budget_s is not None else job.deadline_s - job.queued_s
        if latency_s <= limit_s and not job.truncated:
            series.slo_ok(path).inc()
            names.append("slo_ok")
        self._count_tokens(series, served)
        if job.truncated:
            series.fallback(path).inc()
        elif served.tokens_computed:
            series.fallback(_FALLBACKS[served.path]).inc()
        self._recent.observe(latency_s, path, "all")
        self._recent.count(*names)
        self._spend(job.started_s, job.done_s)

    def stepped(self, flight: Flight, seconds: float) -> None:
        series = self._series
        series.chunks.inc()
        series.chunk.observe(seconds)
        if flight.steps == 1:
            series.lap_queue("prefix").observe(max(flight.started_s - flight.queued_s, 0.0))
        self._spend(flight.done_s - seconds, flight.done_s)

    def failed(self, kind: str, error: RelayError) -> None:
        series = self._series
        if isinstance(error, DeadlineError):
            series.deadline_missed(kind).inc()
            name = "deadline"
        elif isinstance(error, CancelledError):
            series.cancelled(kind).inc()
            name = "cancelled"
        else:
            found = next((name for base, name in _KINDS if isinstance(error, base)), OTHER)
            series.failed(kind, found).inc()
            name = "failed"
        self._recent.count(f"lost {name}", *(["rank lost"] if kind == "rank" else []))

    def signalled(self, answer: PrefixAnswer) -> None:
        """A prefix signal was answered; its flight is followed to its end."""
        series, admission = self._series, answer.admission
        series.requests("prefix", admission.value).inc()
        reason = admission.value
        if admission is Admission.REJECTED:
            reason = answer.reason if answer.reason in REASONS else OTHER
        series.decisions(reason).inc()
        self._recent.count("signalled", f"admission {reason}")
        if admission is Admission.JOINED:
            series.joins.inc()
            series.lookups("prefix", "joined").inc()
        else:
            series.lookups("prefix", _result(answer.cached, answer.tokens)).inc()
        if admission is Admission.ADMITTED and answer.flight is not None:
            answer.flight.add_done_callback(self._landed)

    def decided(self, verdict: Verdict, seconds: float) -> None:
        """The trigger decided on a signal."""
        self._series.decision.observe(max(seconds, 0.0))

    def lead(self, seconds: float, ready: bool) -> None:
        """A ranking came so long after its signal."""
        self._series.lead.observe(max(seconds, 0.0))

    def left(self, cause: Cause) -> None:
        """A prefix is live no longer."""
        if cause is not Cause.CONSUMED:
            self._series.waste(cause.value).inc()

    def shadowed(self, difference: float, breach: bool) -> None:
        """A hit was scored again without the cache."""
        self._series.epsilon.observe(difference)
        if breach:
            self._series.breaches.inc()

    def appended(self, accepted: int, late: int) -> None:
        """A store accepted events; `late` of them are older than the one before."""
        self._series.events.inc(accepted)
        self._series.late_events.inc(late)

    def disconnected(self, stage: str) -> None:
        """A client went away while it waited."""
        self._series.disconnects(stage).inc()

    def answered(self, route: str, status: int, seconds: float) -> None:
        """An HTTP answer; `route` is the pattern of the path, never the path."""
        series = self._series
        series.http_requests(route, str(status)).inc()
        series.http_seconds(route).observe(seconds)
        self._recent.count(f"answer {status // 100}xx")

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type. May wait for a running batch: call it off the event loop."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def snapshot(
        self,
        state: State = "ready",
        generation: Callable[[], Generation] | None = None,
        slates: Callable[[], Slates] | None = None,
        stream: Callable[[], StreamStatus] | None = None,
    ) -> Status:
        """What `/v1/status` says; `generation`, `slates` and `stream` are asked, where there are such.

        May wait for a running batch: call it off the event loop.
        """
        facts = self._facts
        age_s = None if facts is None else max(self._wall_s() - facts.loaded_s, 0.0)
        return summary(
            state,
            self._recent,
            self.readings(),
            facts,
            age_s,
            generation() if generation is not None else None,
            slates() if slates is not None else None,
            stream() if stream is not None else None,
            uptime_s=self.uptime_s,
            busy=self.utilisation,
        )

    def _count_tokens(self, series: Series, served: PrefetchResult) -> None:
        cached, computed = served.tokens_cached, served.tokens_computed
        series.served_tokens.observe(cached + computed)
        if cached:
            series.tokens("cached").inc(cached)
            self._recent.count("tokens cached", amount=cached)
        if computed:
            series.tokens("computed").inc(computed)
            self._recent.count("tokens computed", amount=computed)
        found = "host" if served.tokens_loaded else _result(cached, cached + computed)
        series.lookups("rank", found).inc()

    def _spend(self, begin_s: float, end_s: float) -> None:
        """The executor computed; the requests of one batch all tell of the same time."""
        begin_s = max(begin_s, self._computed_until_s)
        if end_s > begin_s:
            self._computed_until_s = end_s
            self._recent.spend("computed", end_s - begin_s)

    def _landed(self, flight: Future[PrefetchResult]) -> None:
        if isinstance(flight, Flight) and not flight.cancelled() and flight.exception() is None:
            seconds = max(flight.done_s - flight.queued_s, 0.0)
            self._series.preinfer.observe(seconds)
            if flight.reloaded:
                self._series.reload.observe(seconds)


def _result(cached: int, tokens: int) -> str:
    """How much of a prefix the device had."""
    return "device" if cached and cached == tokens else "partial" if cached else "miss"
