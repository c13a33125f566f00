"""Counts what became of every visit, in histograms of bounded size."""

from __future__ import annotations

from collections import Counter

from hdrh.histogram import HdrHistogram

from relaygr.bench.serve_report import Failure, Latency, LoadResult

_MAX_US = 3_600_000_000
_LATE_US = 5_000
_MODELS = 16


class Histogram:
    """Times from a microsecond to an hour in three significant digits."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _MAX_US, 3)

    def __len__(self) -> int:
        return int(self._counts.total_count)

    def add(self, seconds: float) -> None:
        self._counts.record_value(min(max(round(seconds * 1e6), 1), _MAX_US))

    def ms(self, percent: float) -> float:
        """0 without times."""
        return float(self._counts.get_value_at_percentile(percent)) / 1e3 if len(self) else 0.0

    @property
    def mean_ms(self) -> float:
        return float(self._counts.get_mean_value()) / 1e3 if len(self) else 0.0

    @property
    def max_ms(self) -> float:
        return float(self._counts.get_max_value()) / 1e3 if len(self) else 0.0

    def row(self, stage: str, path: str) -> Latency:
        return Latency(
            stage=stage,
            path=path,
            count=len(self),
            mean_ms=self.mean_ms,
            p50_ms=self.ms(50),
            p90_ms=self.ms(90),
            p99_ms=self.ms(99),
            p999_ms=self.ms(99.9),
            max_ms=self.max_ms,
        )


class Tally:
    """What happened to the requests that were due in the measured time."""

    def __init__(self, deadline_ms: float) -> None:
        self._deadline_s = deadline_ms / 1000
        self._times: dict[tuple[str, str], Histogram] = {}
        self._lag = Histogram()
        self._late = 0
        self._failures: Counter[tuple[str, str]] = Counter()
        self._models: set[str] = set()
        self._cached = self._served = 0
        self.visits = self.good = 0

    def due(self) -> None:
        self.visits += 1

    def sent(self, lag_s: float) -> None:
        self._lag.add(lag_s)
        self._late += lag_s * 1e6 > _LATE_US

    def done(self, stage: str, path: str, seconds: float) -> None:
        for name in {path, "all"}:
            self._times.setdefault((stage, name), Histogram()).add(seconds)
        if stage == "rank":
            self.good += path != "truncated" and seconds <= self._deadline_s

    def served(self, model: str, cached: int, tokens: int) -> None:
        if len(self._models) < _MODELS:
            self._models.add(model)
        self._cached += cached
        self._served += tokens

    def failed(self, stage: str, what: str) -> None:
        self._failures[stage, what] += 1

    def result(self, rate: float, seconds: float) -> LoadResult:
        ranked = self._times.get(("rank", "all"))
        order = {"rank": 0, "prefix": 1, "events": 2}
        keys = sorted(self._times, key=lambda key: (order[key[0]], key[1] != "all", key[1]))
        return LoadResult(
            rate=rate,
            seconds=seconds,
            offered_rps=self.visits / seconds,
            done_rps=(len(ranked) if ranked is not None else 0) / seconds,
            visits=self.visits,
            missed=self._failures["rank", "missed"],
            good=self.good,
            good_share=self.good / self.visits if self.visits else 0.0,
            goodput_rps=self.good / seconds,
            late_sends=self._late,
            send_lag_p99_ms=self._lag.ms(99),
            send_lag_max_ms=self._lag.max_ms,
            tokens_cached_share=self._cached / self._served if self._served else 0.0,
            models=sorted(self._models),
            latencies=[self._times[key].row(*key) for key in keys],
            failures=[
                Failure(stage=stage, what=what, count=count)
                for (stage, what), count in sorted(self._failures.items())
            ],
        )
