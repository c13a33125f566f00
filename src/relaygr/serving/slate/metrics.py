"""What slates count, as Prometheus series and as numbers of the status page.

Every series has the label `model`, the first twelve digits of the fingerprint of the ranker's weights. Of
rules only those of the server have a name of their own; those of requests are `request`.
"""

from __future__ import annotations

from collections import Counter as Tallied
from collections.abc import Callable, Iterable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relaygr.core.errors import OverloadError, RelayError
from relaygr.engine.slate.maker import Made
from relaygr.listwise.diversity import list_distance, pool_distance
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.pool import MISSING
from relaygr.listwise.request import Mode
from relaygr.listwise.result import Reason, SlateResult, Stage
from relaygr.serving.recent import FIVE_MINUTES_S, MINUTE_S, Recent
from relaygr.serving.series import DIGITS
from relaygr.serving.slate.drift import ContextDrift
from relaygr.serving.slate.inflation import Group, InflationWatch, ListName, lists_class
from relaygr.serving.slate.log_metrics import LogMetrics
from relaygr.serving.snapshot import Latency, Slates
from relaygr.serving.summary import tallies

AUTHOR = "author"
_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.25, 0.5, 1, 2.5),
)
_SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_RECENT = "slate "


class SlateMetrics:
    """Counts what it is told; may be told from any thread.

    Args:
        registry: of the service.
        recent: what the status page reads; names begin with "slate ".
        model: fingerprint of the ranker of the next slate.
        waiting: slates that wait or are being made.
        mode: of the server.
        top: candidates by pointwise rank that greedy and beams look at.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        recent: Recent,
        model: Callable[[], str],
        waiting: Callable[[], int],
        mode: Callable[[], Mode],
        top: int,
    ) -> None:
        self._registry, self._recent, self._model = registry, recent, model
        self._waiting, self._mode, self._top = waiting, mode, str(top)
        counter, histogram, summed = self._counter, self._histogram, self._summary
        self._requests = counter("requests_total", "Slates answered", "mode")
        self._rejected = counter("rejected_total", "Slates refused, by reason", "reason")
        self._chosen = counter(
            "chosen_total", "Lists returned, by the generator that proposed them", "generator"
        )
        self._reached = counter("stage_total", "The last stage that was finished", "stage")
        self._fallback = counter("fallback_total", "Pointwise lists that no evaluator chose", "reason")
        self._relaxed = counter("relaxed_total", "Rules that no list satisfied", "rule")
        self._timeouts = counter("timeouts_total", "Slates whose time ran out before the last stage")
        self._unrestricted = counter("unrestricted_total", "Slates without the trust region")
        self._lookahead = counter("lookahead_budget_total", "Exact searches that ran out of nodes or time")
        self._dropped = counter("dropped_total", "Proposed lists that broke a rule", "generator")
        self._unknown = counter("unknown_items_total", "Candidates that the item table lacks")
        self._seconds = histogram("seconds", "Time by stage; `all` is the list layer", _SECONDS, "stage")
        self._distance = histogram("list_distance", "Mean distance of the items of a list", _SHARES)
        self._author = histogram("author_share", "Largest share of one author in a list", _SHARES)
        self._pool = histogram("pool_distance", "Mean distance of the lists that competed", _SHARES)
        self._feature = summed("feature", "Context of the picks, as the step model saw it", "feature")
        of_whom = ("generator", "top", "lists")
        self._predicted = summed(
            "predicted_utility", "Unpriced utility of lists whose outcome came", *of_whom
        )
        self._outcome = summed("outcome_utility", "What those lists turned out to be worth", *of_whom)
        self._explored = counter(
            "explored_total", "Requests that were to explore, by what became of it", "result"
        )
        self._inflation, self._drift = InflationWatch(), ContextDrift()
        self.log = LogMetrics(registry, lambda: self.model)
        registry.register(_Gauges(self, self._inflation, self._drift, waiting, mode, self._top))

    @property
    def model(self) -> str:
        return self._model()[:DIGITS]

    def made(self, made: Made, name: ListName, waited_s: float, seconds: float, rules: Iterable[str]) -> None:
        """A slate was made; `rules` are the names of the server's, `seconds` with what it waited."""
        result, model = made.result, self.model
        self._requests.labels(model, result.mode.value).inc()
        self._chosen.labels(model, result.generator).inc()
        self._reached.labels(model, result.stage_reached.value).inc()
        names = [f"{_RECENT}made", f"{_RECENT}by {result.generator}"]
        if result.fallback_reason is not None:
            self._fallback.labels(model, result.fallback_reason.value).inc()
            names.append(f"{_RECENT}fallback {result.fallback_reason.value}")
        own = {"length", *rules}
        for each in result.relaxations:
            rule = each.rule if each.rule in own else "request"
            self._relaxed.labels(model, rule).inc()
            names.append(f"{_RECENT}relaxed {rule}")
        if timed_out(result):
            self._timeouts.labels(model).inc()
            names.append(f"{_RECENT}timeout")
        self._unrestricted.labels(model).inc(result.unrestricted)
        self._lookahead.labels(model).inc(result.lookahead_budget)
        for dropped in result.dropped:
            self._dropped.labels(model, dropped.generator).inc()
        self._unknown.labels(model).inc(made.unknown)
        for stage, milliseconds in result.stage_ms.items():
            self._seconds.labels(model, str(stage)).observe(milliseconds / 1e3)
        self._seconds.labels(model, "wait").observe(waited_s)
        self._seconds.labels(model, "all").observe(seconds)
        self._recent.count(*names)
        self._recent.observe(seconds, f"{_RECENT}all")
        if result.exploration is not None:
            self._explored.labels(model, result.exploration.value).inc()
        if not result.explored:
            self._lists_of(made, model)
        if result.unpriced is not None and result.mode is Mode.ON:
            group = Group(model, result.generator, lists_class(len(result.pool)), result.explored)
            self._inflation.promise(name, group, result.unpriced, len(result.items))

    def rejected(self, error: RelayError) -> None:
        """A slate ended in an error."""
        reason = "request"
        if isinstance(error, InfeasibleError):
            reason = "infeasible"
        elif isinstance(error, OverloadError):
            reason = "overload"
        self._rejected.labels(self.model, reason).inc()
        self._recent.count(f"{_RECENT}refused {reason}")

    def positions(self, name: ListName) -> int | None:
        """How long a list was whose outcome may still come; None if it is not remembered."""
        return self._inflation.positions(name)

    def outcome(self, name: ListName, utility: float | None) -> bool:
        """What a list turned out to be worth, if that is known.

        Returns False if it is not remembered, or was told before.
        """
        if utility is None:
            return self._inflation.forget(name)
        found = self._inflation.outcome(name, utility)
        if found is None:
            return False
        group, predicted = found
        labels = (group.model, group.generator, self._top, group.lists)
        self._predicted.labels(*labels).observe(predicted)
        self._outcome.labels(*labels).observe(utility)
        return True

    def status(self, value: str, rules: str, step: str) -> Slates:
        """As the status page shows it, with the versions of what makes lists."""
        minute, five = self._recent.counts(MINUTE_S), self._recent.counts(FIVE_MINUTES_S)
        latencies = [self._recent.latencies(span) for span in (MINUTE_S, FIVE_MINUTES_S)]
        latency, longer = (Latency.of(found.get(f"{_RECENT}all", Tallied())) for found in latencies)
        inflation, drift = self._inflation.overall(self.model), self._drift.drift()
        furthest = max(drift, key=lambda name: abs(drift[name]), default="")
        return Slates(
            mode=self._mode().value,
            value=value,
            rules=rules,
            step=step,
            waiting=self._waiting(),
            minute=latency,
            five_minutes=longer,
            chosen=tallies(f"{_RECENT}by ", minute, five),
            fallbacks=tallies(f"{_RECENT}fallback ", minute, five),
            relaxed=tallies(f"{_RECENT}relaxed ", minute, five),
            refused=tallies(f"{_RECENT}refused ", minute, five),
            timeouts=minute[f"{_RECENT}timeout"],
            timeouts_five_minutes=five[f"{_RECENT}timeout"],
            outcomes=inflation.outcomes,
            inflation=inflation.ratio,
            inflation_alarm=inflation.alarm,
            drift_feature=furthest,
            drift=drift[furthest] if furthest else None,
        )

    def _lists_of(self, made: Made, model: str) -> None:
        result, pool = made.result, made.pool
        if len(result.picks) > 1 and pool.vectors is not None:
            self._distance.labels(model).observe(list_distance(pool.vectors[result.picks]))
        authors = pool.attributes.get(AUTHOR)
        if authors is not None:
            listed = authors[result.picks]
            _, counts = np.unique(listed[listed != MISSING], return_counts=True)
            self._author.labels(model).observe(float(counts.max(initial=0)) / len(result.picks))
        lists = result.shadow.pool if result.shadow is not None else result.pool
        if len(lists) > 1:
            self._pool.labels(model).observe(pool_distance(np.stack([one.picks for one in lists])))
        context = result.shadow.context if result.shadow is not None else result.context
        for name, mean in context.items():
            self._feature.labels(model, name).observe(mean)
        self._drift.tell(context)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"relaygr_slate_{name}", text, ("model", *labels), registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(
            f"relaygr_slate_{name}", text, ("model", *labels), registry=self._registry, buckets=buckets
        )

    def _summary(self, name: str, text: str, *labels: str) -> Summary:
        return Summary(f"relaygr_slate_{name}", text, ("model", *labels), registry=self._registry)


class _Gauges(Collector):
    """Reads once a scrape."""

    def __init__(
        self,
        metrics: SlateMetrics,
        inflation: InflationWatch,
        drift: ContextDrift,
        waiting: Callable[[], int],
        mode: Callable[[], Mode],
        top: str,
    ) -> None:
        self._metrics, self._waiting, self._mode = metrics, waiting, mode
        self._inflation, self._drift, self._top = inflation, drift, top

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads nothing."""
        return iter(())

    def collect(self) -> Iterable[Metric]:
        model, mode = self._metrics.model, self._mode()
        waiting = GaugeMetricFamily(
            "relaygr_slate_waiting", "Slates that wait or are being made", labels=("model",)
        )
        waiting.add_metric((model,), self._waiting())
        yield waiting
        modes = GaugeMetricFamily("relaygr_slate_mode", "1 for the server's mode", labels=("model", "mode"))
        for each in Mode:
            modes.add_metric((model, each.value), float(each is mode))
        yield modes
        of_whom = ("model", "generator", "top", "lists")
        text = "Promised by realised utility of the last lists whose outcome came"
        inflation = GaugeMetricFamily("relaygr_slate_inflation", text, labels=of_whom)
        text = "1 where enough of those lists were worth clearly less than was promised"
        alarm = GaugeMetricFamily("relaygr_slate_inflation_alarm", text, labels=of_whom)
        for group, one in self._inflation.groups().items():
            labels = (group.model, group.generator, self._top, group.lists)
            if one.ratio is not None:
                inflation.add_metric(labels, one.ratio)
            alarm.add_metric(labels, float(one.alarm))
        yield inflation
        yield alarm
        text = "Context of the last lists against the first, in standard deviations"
        drift = GaugeMetricFamily("relaygr_slate_feature_drift", text, labels=("model", "feature"))
        for name, moved in self._drift.drift().items():
            drift.add_metric((model, name), moved)
        yield drift


def timed_out(result: SlateResult) -> bool:
    """Whether the time ran out before the last stage."""
    inner = result.shadow or result
    broken = (Reason.OFF, Reason.NAN, Reason.RULES, Reason.ERROR)
    return inner.stage_reached is not Stage.EVALUATION and inner.fallback_reason not in broken
