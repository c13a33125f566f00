"""What became of the lists that a log was to hold, as Prometheus series."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Fate(StrEnum):
    """What became of a served list."""

    WRITTEN = "written"
    TIMEOUT = "timeout"  # no outcome came in time
    FORGOTTEN = "forgotten"  # too many waited for their outcomes
    REPLACED = "replaced"  # the request was served again
    UNOBSERVED = "unobserved"  # its outcome said nothing of positions
    OVERFLOW = "overflow"  # too many waited for the disk
    FAILED = "failed"  # the file system refused
    STOPPED = "stopped"  # the service stopped before the outcome came


class LogMetrics(Collector):
    """Counts what it is told; may be told from any thread. The gauges are 0 without a log.

    Args:
        registry: of the service.
        model: first digits of the ranker's weights.
    """

    def __init__(self, registry: CollectorRegistry, model: Callable[[], str]) -> None:
        self._model = model
        self.waiting: Callable[[], int] = _nothing
        self.queued: Callable[[], int] = _nothing
        text = "Served lists by what became of their record"
        self._lists = Counter("relaygr_slate_log_lists_total", text, ("model", "fate"), registry=registry)
        registry.register(self)

    def tell(self, fate: Fate, lists: int = 1) -> None:
        self._lists.labels(self._model(), fate.value).inc(lists)

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads nothing."""
        return iter(())

    def collect(self) -> Iterable[Metric]:
        for name, text, read in (
            ("waiting", "Served lists that wait for their outcome", self.waiting),
            ("queued", "Records that wait for the disk", self.queued),
        ):
            gauge = GaugeMetricFamily(f"relaygr_slate_log_{name}", text, labels=("model",))
            gauge.add_metric((self._model(),), read())
            yield gauge


def _nothing() -> int:
    return 0
