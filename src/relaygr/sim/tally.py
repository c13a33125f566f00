"""What a simulation counts."""

from __future__ import annotations

from array import array
from collections import Counter

import msgspec
import numpy as np

from relaygr.sim.visit import Visit


class Count(msgspec.Struct, frozen=True):
    """How many requests of one name."""

    name: str
    count: int


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds; 0 without any request."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Requests whose trigger fell into a stretch of the load; `time_s` is its beginning, from the first one.

    Attributes:
        hits: rankings that found their whole prefix.
    """

    time_s: float
    requests: int = 0
    good: int = 0
    hits: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated load; its warm-up is in none of the numbers.

    Attributes:
        requests: that count; `rate` of them came a second.
        good: scores of the whole history within the rank budget; `in_time`: of any history; `valid`: of any
            within the request's budget.
        latency: from the time ranking was due to the answer; `wait`: until its pass began; `work`: its pass.
        short: latency of the short histories of a mixed load.
        paths, reasons, outcomes: what served the rankings, what the trigger said, what pre-inference did.
        late: requests that were not good, by what stood in their way.
        served_mean: history tokens that scores rest on; `computed_ahead`, `computed_inline`: tokens a
            request, by pre-inference and by ranking.
        busy: share of the slots' time in use.
        device_hits: rankings whose prefix was on the device when they began, as a share.
        ready_before: of the admitted ones, those whose prefix was complete when their ranking was due.
        wasted: prefixes that no ranking used, as a share of those computed.
        owners_differ: share of the requests with both laps that went to two instances.
        reloads, spills: copies from and to host memory; `fetches`: from other instances.
        load_max_over_mean: the busiest instance's rankings over the mean.
        windows: the load in stretches of equal length.
    """

    requests: int
    rate: float
    good: int
    in_time: int
    valid: int
    latency: Times
    wait: Times
    work: Times
    short: Times
    paths: list[Count]
    reasons: list[Count]
    outcomes: list[Count]
    late: list[Count]
    served_mean: float
    computed_ahead: float
    computed_inline: float
    busy: float
    device_hits: float
    ready_before: float
    wasted: float
    owners_differ: float
    reloads: int
    spills: int
    fetches: int
    load_max_over_mean: float
    windows: list[Window]

    @property
    def good_share(self) -> float:
        return self.good / max(self.requests, 1)

    @property
    def valid_share(self) -> float:
        return self.valid / max(self.requests, 1)


class Tally:
    """Adds up visits that ended; made anew for every simulation."""

    def __init__(self, begin_s: float, window_s: float, short_length: int = 0) -> None:
        """
        Args:
            begin_s: when the first counted request comes; windows of `window_s` follow from there.
            short_length: histories up to this are also kept apart.
        """
        self._begin_s = begin_s
        self._short = short_length
        self.requests = self.good = self.in_time = self.valid = self.served = 0
        self.first_s, self.last_s = float("inf"), 0.0
        self.latency, self.wait, self.work, self.short = (array("d") for _ in range(4))
        self.paths: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self.inline = self.hits = self.ready = self.both = self.differ = 0
        self._window_s = window_s
        self._windows: dict[int, list[int]] = {}

    def add(self, visit: Visit) -> None:
        """A visit has its answer."""
        if not visit.request.counted:
            return
        time_s, good, hit = visit.request.time_s, visit.good, visit.path in ("hit", "reloaded")
        self.requests += 1
        self.first_s = min(self.first_s, time_s)
        self.last_s = max(self.last_s, time_s)
        self.paths[visit.path] += 1
        self.reasons[visit.reason or "none"] += 1
        self.served += visit.served
        self.inline += visit.missing
        self.valid += visit.valid
        self.in_time += visit.in_time
        self._note(time_s, good, hit)
        if good:
            self.good += 1
        else:
            self.late[_cause(visit)] += 1
        if visit.outcome:
            self.outcomes[visit.outcome] += 1
            self.ready += visit.ready_s <= visit.due_s
        if visit.owner >= 0 and visit.rank_owner >= 0:
            self.both += 1
            self.differ += visit.owner != visit.rank_owner
        if visit.path == "lost":
            return
        due_s, started_s, done_s = visit.due_s, visit.started_s, visit.done_s
        self.hits += hit
        self.latency.append(done_s - due_s)
        self.wait.append(started_s - due_s)
        self.work.append(done_s - started_s)
        if visit.tokens <= self._short:
            self.short.append(done_s - due_s)

    def windows(self) -> list[Window]:
        """In order of time, without those that nobody came in."""
        return [
            Window(time_s=number * self._window_s, requests=requests, good=good, hits=hits)
            for number, (requests, good, hits) in sorted(self._windows.items())
        ]

    def _note(self, time_s: float, good: bool, hit: bool) -> None:
        number = int((time_s - self._begin_s) / self._window_s)
        window = self._windows.setdefault(number, [0, 0, 0])
        window[0] += 1
        window[1] += good
        window[2] += hit

    def admitted(self) -> int:
        return sum(self.outcomes.values())


def _cause(visit: Visit) -> str:
    """What stood in the way of a good answer, as far as one thing did."""
    how: str = visit.path
    if how not in ("lost", "truncated", "degraded"):
        how = "waited" if visit.started_s - visit.due_s > visit.done_s - visit.started_s else "slow"
    if visit.outcome == "":
        return f"{visit.reason or 'inline'}: {how}"
    if visit.missing + visit.prefix <= visit.tokens:
        return f"ready: {how}"
    return f"{'partly ready' if visit.cached else 'not begun'}: {how}"


def times(seconds: array[float]) -> Times:
    """Percentiles of a column of seconds, in milliseconds."""
    if not seconds:
        return Times()
    values = 1000 * np.frombuffer(seconds, np.float64)
    p50, p90, p99, p999 = np.percentile(values, (50, 90, 99, 99.9)).tolist()
    return Times(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, p999=p999, max=float(values.max()))


def counts(counter: Counter[str]) -> list[Count]:
    """Most frequent first."""
    return [Count(str(name), count) for name, count in counter.most_common()]  # an enum of strings, too
