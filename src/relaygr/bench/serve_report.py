"""What `bench serve --json` writes."""

from __future__ import annotations

import msgspec


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the time a request was due to its whole answer, within 0.1 %; null without any.

    Attributes:
        stage: `rank`, `prefix` or `events`.
        path: of rankings, what served them; of prefix signals, the admission; `all` is all of the stage.
    """

    stage: str
    path: str
    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Requests without a good answer, by status or by what happened to them."""

    stage: str
    what: str
    count: int


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One measured stretch of load; the warm-up is in none of its numbers.

    Attributes:
        offered_rps, done_rps: rankings due and rankings answered, a second.
        visits: rankings due; `missed` of them were never sent, because all connections were in use.
        good, good_share, goodput_rps: answered with the whole history within the deadline.
        late_sends: of those sent, more than 5 ms after they were due; their latency counts from then.
        send_lag_p99_ms: how late the client itself was.
        tokens_cached_share: of the history tokens that rankings were served from.
        models: fingerprints in the answers.
    """

    rate: float
    seconds: float
    offered_rps: float
    done_rps: float
    visits: int
    missed: int
    good: int
    good_share: float
    goodput_rps: float
    late_sends: int
    send_lag_p99_ms: float
    send_lag_max_ms: float
    tokens_cached_share: float
    models: list[str]
    latencies: list[Latency]
    failures: list[Failure]

    def latency(self, stage: str, path: str = "all") -> Latency | None:
        found = [row for row in self.latencies if (row.stage, row.path) == (stage, path)]
        return found[0] if found else None

    @property
    def errors(self) -> int:
        return sum(failure.count for failure in self.failures)


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The search for the highest rate that passes.

    Attributes:
        best_rps: it; null when no rate passed. `ended`: why the search stopped there.
    """

    slo_ms: float
    share: float
    best_rps: float | None
    ended: str
    probes: list[LoadResult]


class ServeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench serve --json` writes; `load` or `search` is null where the other was asked for.

    Attributes:
        users_left: users of the load that the server did not delete afterwards.
    """

    url: str
    cpu: str
    cores: int
    arrivals: str
    users: int
    history: int
    candidates: int
    new_events: int
    prefix: bool
    lead_ms: float
    deadline_ms: float
    seed: int
    load: LoadResult | None
    search: Search | None
    users_left: int
