"""What a consumer counts, and how it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from relaygr.core.clock import Clock, MonotonicClock
from relaygr.data.streams import Lag

RESULTS = ("applied", "duplicate", "dead")


class StreamStatus(Struct, frozen=True, kw_only=True):
    """The event stream as it is now.

    Attributes:
        state: `reading`; `waiting`: what was read cannot be appended and is tried again; `failing`: a stream
            of this server cannot be read; `unreachable`: the server of the streams; `stopped`.
        streams: that this server reads, of `streams_total`.
        lag_entries, lag_s: of all streams: entries not acknowledged, age of the oldest; null where unknown.
            The latter is an upper bound, which grows while the stream's server does not answer.
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


class Told(NamedTuple):
    """A lag, when it was asked for, and until when it counts as new; in seconds of the clock."""

    lag: Lag
    at_s: float
    until_s: float


@dataclass(slots=True)
class Counts:
    """Written by the event loop alone.

    Attributes:
        read: entries given to us, by stream; results: (stream, result) of entries.
        leases: streams that were given to us, and until when at least they are ours.
        failing: streams of ours whose last read failed.
        waiting: appends that failed and are tried again.
        lag: as each stream's was told last.
        clock: its seconds are those of `leases` and `lag`.
    """

    streams: tuple[str, ...]
    state: str = "stopped"
    read: Counter[str] = field(default_factory=Counter)
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    reconnects: int = 0
    retries: int = 0
    waiting: int = 0
    leases: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    lag: dict[str, Told] = field(default_factory=dict)
    clock: Clock = field(default_factory=MonotonicClock)
    _start_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._start_s = self.clock.now_s()

    @property
    def assigned(self) -> frozenset[str]:
        """Streams that are ours for certain: a lease that was not renewed in time is over."""
        now_s = self.clock.now_s()
        return frozenset(name for name, until_s in dict(self.leases).items() if now_s < until_s)

    def unanswered_s(self, stream: str) -> float:
        """Since the lag of `stream` was told last, or since the start."""
        told = self.lag.get(stream)
        return self.clock.now_s() - (told.at_s if told else self._start_s)

    def entries(self, stream: str) -> int | None:
        """Entries that are not acknowledged; None where nobody knows any more."""
        told = self.lag.get(stream)
        return told.lag.entries if told and self.clock.now_s() < told.until_s else None

    def age_s(self, stream: str) -> float | None:
        """The oldest of them is no older than this; None before it was told.

        What came since the last answer, or was there then, is at most as old as both together.
        """
        told, now_s = self.lag.get(stream), self.clock.now_s()
        if told is None:
            return None
        return told.lag.seconds + (now_s - told.at_s if now_s >= told.until_s else 0.0)

    def status(self) -> StreamStatus:
        total: Counter[str] = Counter()
        for (_, result), count in dict(self.results).items():
            total[result] += count
        state = self.state
        if state == "reading":
            state = "failing" if self.failing else "waiting" if self.waiting else state
        entries = [one for name in self.streams if (one := self.entries(name)) is not None]
        ages = [age for name in self.streams if (age := self.age_s(name)) is not None]
        return StreamStatus(
            state=state,
            streams=len(self.assigned),
            streams_total=len(self.streams),
            lag_entries=sum(entries) if len(entries) == len(self.streams) else None,
            lag_s=max(ages) if len(ages) == len(self.streams) else None,
            applied=total["applied"],
            duplicates=total["duplicate"],
            dead=total["dead"],
            trimmed=sum(told.lag.trimmed for told in dict(self.lag).values()),
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
        age = _gauge("lag_seconds", "The oldest entry not acknowledged is no older than this", "stream")
        unanswered = _gauge("unanswered_seconds", "Since the stream's server last told the lag", "stream")
        ours = _gauge("assigned", "Whether the stream is this server's", "stream")
        assigned = counts.assigned
        for name in streams:
            read.add_metric((name,), counts.read[name])
            ours.add_metric((name,), name in assigned)
            unanswered.add_metric((name,), counts.unanswered_s(name))
            for result in RESULTS:
                entries.add_metric((name, result), counts.results[name, result])
            if (told := counts.lag.get(name)) is not None:
                trimmed.add_metric((name,), told.lag.trimmed)
            if (behind := counts.entries(name)) is not None:
                lag.add_metric((name,), behind)
            if (seconds := counts.age_s(name)) is not None:
                age.add_metric((name,), seconds)
        reconnects = _counter("reconnects", "Failures of the stream's server")
        reconnects.add_metric((), counts.reconnects)
        retries = _counter("retries", "Appends of streamed events that failed and were tried again")
        retries.add_metric((), counts.retries)
        waiting = _gauge("waiting", "Users whose events cannot be appended and are tried again")
        waiting.add_metric((), counts.waiting)
        yield from (read, entries, trimmed, lag, age, unanswered, ours, reconnects, retries, waiting)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"relaygr_stream_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"relaygr_stream_{name}", text, labels=labels)
