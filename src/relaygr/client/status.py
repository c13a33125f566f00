"""The figures of the status page. Those that a server does not know are null."""

from __future__ import annotations

from relaygr.client.answers import Answer


class ModelFacts(Answer, frozen=True, kw_only=True):
    """What is served; `loaded_s` is Unix time."""

    name: str
    fingerprint: str
    dtype: str
    kernel: str
    loaded_s: float


class Latency(Answer, frozen=True, kw_only=True):
    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class PathLatency(Answer, frozen=True, kw_only=True):
    """Ranking by the path that served it; path `all` is all of them."""

    path: str
    minute: Latency
    five_minutes: Latency


class Tally(Answer, frozen=True, kw_only=True):
    """How often something happened in the last minutes."""

    name: str
    minute: int
    five_minutes: int


class Rates(Answer, frozen=True, kw_only=True):
    """Of the last minute, a second; `slo_ok_share` of what was ranked or failed."""

    rank: float
    prefix: float
    http: float
    errors: float
    slo_ok_share: float | None


class Queue(Answer, frozen=True, kw_only=True):
    """Rank requests and prefixes that wait, HTTP requests in progress, share of time that is computed."""

    ranks: int
    flights: int
    busy: bool
    in_progress: int
    utilisation: float


class Pool(Answer, frozen=True, kw_only=True):
    """The device memory of user states."""

    total_bytes: int
    free_bytes: int
    pinned_bytes: int
    evictable_bytes: int
    entries: int
    leases: int
    evictions: int


class Recurrent(Answer, frozen=True, kw_only=True):
    """Memory of recurrent states of prompts: nobody's, of requests, of snapshots."""

    free_bytes: int
    working_bytes: int
    kept_bytes: int
    host_free_bytes: int
    host_kept_bytes: int
    snapshots: int
    evictions: int


class Generation(Answer, frozen=True, kw_only=True):
    """The generator: what serves, and what waits, runs and is held now.

    Attributes:
        waiting, running: generations; prompts: to be encoded ahead.
        rows, tokens: beams of what runs, and prompt tokens of it that are still to be computed.
        states: device memory of prompts.
    """

    model: str
    catalogue: str
    catalogue_age_s: float | None
    waiting: int
    running: int
    prompts: int
    rows: int
    rows_limit: int
    tokens: int
    tokens_limit: int
    states: Pool
    beam_bytes: int
    beam_limit_bytes: int
    recurrent: Recurrent | None = None


class Slates(Answer, frozen=True, kw_only=True):
    """The list layer: what makes lists, and the last minutes of it.

    Attributes:
        minute, five_minutes: time of the list layer, its wait included.
        chosen: by generator; fallbacks, refused: by reason; relaxed: by rule.
        inflation: what was promised for the last `outcomes` lists by what they were worth.
        drift: of the feature that moved most since the first lists, in standard deviations.
    """

    mode: str
    value: str
    rules: str
    step: str
    waiting: int
    minute: Latency
    five_minutes: Latency
    chosen: list[Tally]
    fallbacks: list[Tally]
    relaxed: list[Tally]
    refused: list[Tally]
    timeouts: int
    timeouts_five_minutes: int
    outcomes: int
    inflation: float | None
    inflation_alarm: bool
    drift_feature: str
    drift: float | None


class Histories(Answer, frozen=True, kw_only=True):
    """Users' events that are kept in memory."""

    users: int
    bytes: int


class Moment(Answer, frozen=True, kw_only=True):
    """Five seconds that ended `age_s` ago."""

    age_s: float
    rank_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors: int


class Status(Answer, frozen=True, kw_only=True):
    """One look at a running server: the last minutes in numbers, and what waits and is held now.

    Attributes:
        tokens: of ranked histories, by where they came from; admissions: prefix signals, by what became of
            them; answers: by the first digit of their status; lost: requests without an answer.
        timeline: oldest first.
    """

    state: str
    version: str
    uptime_s: float
    model: ModelFacts | None
    model_age_s: float | None
    rates: Rates
    ranking: list[PathLatency]
    tokens: list[Tally]
    admissions: list[Tally]
    answers: list[Tally]
    lost: list[Tally]
    queue: Queue
    pool: Pool | None
    generation: Generation | None = None
    slates: Slates | None = None
    histories: Histories
    latency_model_error: float | None
    timeline: list[Moment]
