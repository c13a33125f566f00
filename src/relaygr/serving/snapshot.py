"""What `/v1/status` answers: the last minutes in numbers, and what waits and is held now."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from relaygr.cache.interface import Stats
from relaygr.serving.recent import SLICE_S, percentile_ms
from relaygr.serving.stream.counts import StreamStatus

if TYPE_CHECKING:
    from relaygr.engine.generation.recurrent import StateStats

State = Literal["starting", "ready", "draining"]


class ModelFacts(Struct, frozen=True, kw_only=True):
    """What is served.

    Attributes:
        name: what it is called in URLs.
        fingerprint: of its weights, hexadecimal.
        kernel: of its attention.
        loaded_s: Unix time.
        folder: `folder_digest` of the path that it was loaded from.
    """

    name: str
    fingerprint: str
    dtype: str
    kernel: str
    loaded_s: float
    folder: str = ""


def folder_digest(path: str) -> str:
    """Tells paths apart without showing them: anybody may read the status. Empty for random weights."""
    return hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if path else ""


class Latency(Struct, frozen=True, kw_only=True):
    """Milliseconds by nearest rank, within 2 %; null without requests."""

    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @classmethod
    def of(cls, buckets: Counter[int]) -> Latency:
        p50, p95, p99 = (percentile_ms(buckets, share) for share in (0.5, 0.95, 0.99))
        return cls(count=buckets.total(), p50_ms=p50, p95_ms=p95, p99_ms=p99)


class PathLatency(Struct, frozen=True, kw_only=True):
    """Ranking by the path that served it, from the queue to the scores; path "all" is all of them."""

    path: str
    minute: Latency
    five_minutes: Latency


class Tally(Struct, frozen=True, kw_only=True):
    """How often something happened."""

    name: str
    minute: int
    five_minutes: int


class Rates(Struct, frozen=True, kw_only=True):
    """Of the last minute, a second.

    Attributes:
        rank: requests ranked; prefix: prefix signals; http: requests answered; errors: of them with a status
            of 500 or more.
        slo_ok_share: ranked with the whole history within the budget, of all ranked or failed; null
            without any.
    """

    rank: float
    prefix: float
    http: float
    errors: float
    slo_ok_share: float | None


class Queue(Struct, frozen=True, kw_only=True):
    """What waits and runs now.

    Attributes:
        ranks, flights: rank requests and prefixes that wait.
        in_progress: HTTP requests in the building.
        utilisation: share of the last minute that the engine computed.
    """

    ranks: int
    flights: int
    busy: bool
    in_progress: int
    utilisation: float


class Pool(Struct, frozen=True, kw_only=True):
    """The device memory of user states; free + pinned + evictable = total."""

    total_bytes: int
    free_bytes: int
    pinned_bytes: int
    evictable_bytes: int
    entries: int
    leases: int
    evictions: int

    @classmethod
    def of(cls, pool: Stats) -> Pool:
        return cls(
            total_bytes=pool.total_bytes,
            free_bytes=pool.free_bytes,
            pinned_bytes=pool.pinned_bytes,
            evictable_bytes=pool.evictable_bytes,
            entries=pool.entries,
            leases=pool.leases,
            evictions=pool.evictions,
        )


class Recurrent(Struct, frozen=True, kw_only=True):
    """Memory of recurrent states of prompts; free + working + kept is that of the device.

    Attributes:
        working: of requests; kept: of snapshots. snapshots: on device and host; evictions: of them, since
            the start.
    """

    free_bytes: int
    working_bytes: int
    kept_bytes: int
    host_free_bytes: int
    host_kept_bytes: int
    snapshots: int
    evictions: int

    @classmethod
    def of(cls, states: StateStats) -> Recurrent:
        return cls(
            free_bytes=states.free,
            working_bytes=states.working,
            kept_bytes=states.kept,
            host_free_bytes=states.host_free,
            host_kept_bytes=states.host_kept,
            snapshots=states.snapshots,
            evictions=states.left,
        )


class Generation(Struct, frozen=True, kw_only=True):
    """The generator: what serves, and what waits, runs and is held now.

    Attributes:
        model: fingerprint of its weights, hexadecimal.
        catalogue: version that serves; empty without one. catalogue_age_s: of its data; null without one.
        waiting, running: generations; prompts: to be encoded ahead.
        rows: beams of what runs, of the `rows_limit` that may run together; tokens: prompt tokens of it that
            are still to be computed, of `tokens_limit`.
        states: device memory of prompts.
        beam_bytes: that beams take, of `beam_limit_bytes`.
        recurrent: null for a model without linear layers.
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


class Slates(Struct, frozen=True, kw_only=True):
    """The list layer: what makes lists, and the last minutes of it.

    Attributes:
        mode: of the server; value, rules, step: versions, empty where there is none.
        waiting: lists that wait or are being made.
        minute, five_minutes: time of the list layer, its wait included.
        chosen: lists by the generator that proposed them; fallbacks: pointwise lists that no evaluator chose,
            by reason; relaxed: rules that were given up; refused: by reason.
        timeouts: of the last minute, lists whose time ran out before the last stage.
        outcomes: of lists of the ranker that serves, as far as they count; inflation: what was promised for
            those lists by what they were worth, null without any or where that is 0 or less;
            inflation_alarm: the promises of enough lists are above their worth by more than 5 % of its size.
        drift_feature: of the step model, the one that moved most since the first lists; drift: how far, in
            standard deviations; null before there are lists.
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


class Histories(Struct, frozen=True, kw_only=True):
    """Users' events that are kept in memory."""

    users: int
    bytes: int


class Moment(Struct, frozen=True, kw_only=True):
    """Five seconds of the past; `age_s` is how long ago they ended."""

    age_s: float
    rank_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors: int

    @classmethod
    def of(cls, age_s: float, buckets: Counter[int], errors: int) -> Moment:
        return cls(
            age_s=round(age_s, 1),
            rank_per_s=buckets.total() / SLICE_S,
            p50_ms=percentile_ms(buckets, 0.5),
            p99_ms=percentile_ms(buckets, 0.99),
            errors=errors,
        )


class Status(Struct, frozen=True, kw_only=True):
    """One look at a running service.

    Attributes:
        tokens: history tokens of ranked requests, by where they came from: cached, computed.
        admissions: prefix signals by what became of them.
        answers: HTTP answers by the first digit of their status.
        lost: rank requests and prefixes without an answer: deadline, cancelled, failed.
        generation, slates, stream: null without a generator, a list layer, an event stream.
        latency_model_error: mean of |measured / predicted - 1| over recent passes; null without one.
        timeline: the last five minutes, oldest first.
    """

    state: State
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
    generation: Generation | None
    slates: Slates | None
    stream: StreamStatus | None
    histories: Histories
    latency_model_error: float | None
    timeline: list[Moment]
