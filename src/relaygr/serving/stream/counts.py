"""What a consumer counts, and how it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from relaygr.data.streams import Lag

RESULTS = ("applied", "duplicate", "dead")


class StreamStatus(Struct, frozen=True, kw_only=True):
    """The event stream as it is now.

    Attributes:
        state: `reading`; `waiting`: what was read cannot be appended and is tried again; `unreachable`: the
            server of the stream; `stopped`.
        streams: that this server reads, of `streams_total`.
        lag_entries, lag_s: of all streams: entries not acknowledged, age of the oldest; null until known.
        applied, duplicates, dead, trimmed, reconnects, retries: since the start.
    """

    state: str
    streams: int
    streams_total: int
    lag_entries: int | None
    lag_s: float | None
    applied: int
    duplicates: int
    dead: int
    trimmed: int
    reconnects: int
    retries: int


@dataclass(slots=True)
class Counts:
    """Written by the event loop alone.

    Attributes:
        read: entries given to us, by stream; results: (stream, result) of entries.
        assigned: streams that are ours.
        waiting: appends that failed and are tried again.
        lag: as it was asked for last; empty before.
    """

    streams: tuple[str, ...]
    state: str = "stopped"
    read: Counter[str] = field(default_factory=Counter)
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    reconnects: int = 0
    retries: int = 0
    waiting: int = 0
    assigned: frozenset[str] = frozenset()
    lag: tuple[Lag, ...] = ()

    def status(self) -> StreamStatus:
        total: Counter[str] = Counter()
        for (_, result), count in dict(self.results).items():
            total[result] += count
        lag = self.lag
        return StreamStatus(
            state="waiting" if self.waiting and self.state == "reading" else self.state,
            streams=len(self.assigned),
            streams_total=len(self.streams),
            lag_entries=sum(one.entries for one in lag) if lag else None,
            lag_s=max(one.seconds for one in lag) if lag else None,
            applied=total["applied"],
            duplicates=total["duplicate"],
            dead=total["dead"],
            trimmed=sum(one.trimmed for one in lag),
            reconnects=self.reconnects,
            retries=self.retries,
        )


class StreamMetrics(Collector):
    """Register it at the process's registry."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts, streams = self._counts, self._counts.streams
        read = _counter("read", "Entries read of streams, those that came again included", "stream")
        entries = _counter("entries", "Entries of streams by what became of them", "stream", "result")
        trimmed = _counter("trimmed", "Entries removed before they were acknowledged", "stream")
        lag = _gauge("lag_entries", "Entries not acknowledged", "stream")
        age = _gauge("lag_seconds", "Age of the oldest entry not acknowledged", "stream")
        ours = _gauge("assigned", "Whether the stream is this server's", "stream")
        for name in streams:
            read.add_metric((name,), counts.read[name])
            ours.add_metric((name,), name in counts.assigned)
            for result in RESULTS:
                entries.add_metric((name, result), counts.results[name, result])
        for one in counts.lag:
            trimmed.add_metric((one.stream,), one.trimmed)
            lag.add_metric((one.stream,), one.entries)
            age.add_metric((one.stream,), one.seconds)
        reconnects = _counter("reconnects", "Failures of the stream's server")
        reconnects.add_metric((), counts.reconnects)
        retries = _counter("retries", "Appends of streamed events that failed and were tried again")
        retries.add_metric((), counts.retries)
        waiting = _gauge("waiting", "Users whose events cannot be appended and are tried again")
        waiting.add_metric((), counts.waiting)
        yield from (read, entries, trimmed, lag, age, ours, reconnects, retries, waiting)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"relaygr_stream_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"relaygr_stream_{name}", text, labels=labels)
