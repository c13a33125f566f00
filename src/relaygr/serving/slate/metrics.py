"""What slates count, as Prometheus series and as numbers of the status page.

Every series has the label `model`, the first twelve digits of the fingerprint of the ranker's weights. Of
rules only those of the server have a name of their own; those of requests are `request`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
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
from relaygr.serving.recent import Recent
from relaygr.serving.series import DIGITS

AUTHOR = "author"
REMEMBERED = 10_000  # lists whose outcome may still come
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
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        recent: Recent,
        model: Callable[[], str],
        waiting: Callable[[], int],
        mode: Callable[[], Mode],
    ) -> None:
        self._registry, self._recent, self._model = registry, recent, model
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
        self._lookahead = counter("lookahead_budget_total", "Exact searches that ran out of nodes")
        self._unknown = counter("unknown_items_total", "Candidates that the item table lacks")
        self._seconds = histogram("seconds", "Time by stage; `all` is the list layer", _SECONDS, "stage")
        self._distance = histogram("list_distance", "Mean distance of the items of a list", _SHARES)
        self._author = histogram("author_share", "Largest share of one author in a list", _SHARES)
        self._pool = histogram("pool_distance", "Mean distance of the lists that competed", _SHARES)
        self._feature = summed("feature", "Context of the picks, as the step model saw it", "feature")
        self._predicted = summed("predicted_utility", "Utility of lists whose outcome came", "generator")
        self._outcome = summed("outcome_utility", "What those lists turned out to be worth", "generator")
        self._lock = threading.Lock()
        self._lists: OrderedDict[str, tuple[str, float]] = OrderedDict()
        registry.register(_Gauges(self, waiting, mode))

    @property
    def model(self) -> str:
        return self._model()[:DIGITS]

    def made(
        self, made: Made, request_id: str, waited_s: float, seconds: float, rules: Iterable[str]
    ) -> None:
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
            self._relaxed.labels(model, each.rule if each.rule in own else "request").inc()
        if timed_out(result):
            self._timeouts.labels(model).inc()
            names.append(f"{_RECENT}timeout")
        self._unrestricted.labels(model).inc(result.unrestricted)
        self._lookahead.labels(model).inc(result.lookahead_budget)
        self._unknown.labels(model).inc(made.unknown)
        for stage, milliseconds in result.stage_ms.items():
            self._seconds.labels(model, str(stage)).observe(milliseconds / 1e3)
        self._seconds.labels(model, "wait").observe(waited_s)
        self._seconds.labels(model, "all").observe(seconds)
        self._recent.count(*names)
        self._recent.observe(seconds, f"{_RECENT}all")
        self._lists_of(made, model)
        if result.utility is not None and result.mode is Mode.ON:
            self._remember(request_id, result.generator, result.utility)

    def rejected(self, error: RelayError) -> None:
        """A slate ended in an error."""
        reason = "request"
        if isinstance(error, InfeasibleError):
            reason = "infeasible"
        elif isinstance(error, OverloadError):
            reason = "overload"
        self._rejected.labels(self.model, reason).inc()

    def outcome(self, request_id: str, utility: float) -> bool:
        """What a list turned out to be worth; False if it is not remembered, or was told before."""
        with self._lock:
            found = self._lists.pop(request_id, None)
        if found is None:
            return False
        generator, predicted = found
        self._predicted.labels(self.model, generator).observe(predicted)
        self._outcome.labels(self.model, generator).observe(utility)
        return True

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

    def _remember(self, request_id: str, generator: str, utility: float) -> None:
        with self._lock:
            self._lists[request_id] = generator, utility
            self._lists.move_to_end(request_id)
            while len(self._lists) > REMEMBERED:
                self._lists.popitem(last=False)

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

    def __init__(self, metrics: SlateMetrics, waiting: Callable[[], int], mode: Callable[[], Mode]) -> None:
        self._metrics, self._waiting, self._mode = metrics, waiting, mode

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


def timed_out(result: SlateResult) -> bool:
    """Whether the time ran out before the last stage."""
    inner = result.shadow or result
    broken = (Reason.OFF, Reason.NAN, Reason.RULES, Reason.ERROR)
    return inner.stage_reached is not Stage.EVALUATION and inner.fallback_reason not in broken
