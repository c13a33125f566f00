"""What `relaygr demo` measured, as it stands in `demo.json`."""

from __future__ import annotations

import msgspec


class MachineNote(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran; `threads_ms` has the time of one full pass by number of threads, `threads` was taken."""

    cpu: str
    cores: int
    memory_bytes: int | None
    threads: int
    threads_ms: dict[str, float]
    torch: str
    python: str
    system: str


class DataNote(msgspec.Struct, frozen=True, kw_only=True):
    """The events; training saw those before `train_end_s`, the requests are at or after `test_from_s`."""

    path: str
    name: str
    source: str
    users: int
    events: int
    items: int
    median_length: float
    max_length: int
    train_end_s: int
    test_from_s: int


class TrainingNote(msgspec.Struct, frozen=True, kw_only=True):
    """The short training run; null validation numbers when there was nothing to validate on.

    Attributes:
        reproducible: it ended by the number of steps, not by the clock.
    """

    preset: str
    steps: int
    seconds: float
    stopped: str
    reproducible: bool
    valid_ndcg: float | None
    valid_hr: float | None
    valid_auc: float | None


class CascadeNote(msgspec.Struct, frozen=True, kw_only=True):
    """How candidates were found and what was only modelled.

    Attributes:
        lead_ms: modelled upstream work, a plain wait; everything else is real.
        retrieval_ms_p50: real retrieval and filter.
        candidates_p50: candidates of a request, injected ones included.
        wanted, again: candidates retrieved, and how many of them at most are the user's own latest items.
        recall: share of the true next items that retrieval found.
    """

    lead_ms: float
    retrieval_ms_p50: float
    catalogue_items: int
    vector_size: int
    wanted: int
    again: int
    overfetch: int
    floor: int
    candidates_p50: float
    recall: float


class ModeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of one mode over the same requests.

    Attributes:
        mode: inline, relay, or relay, returning.
        rank_p50_ms, rank_p99_ms, rank_mean_ms: of the rank call, waiting for an unfinished prefetch included.
        rank_max_ms, rank_max_cpu_ms: of the slowest rank call, and the processor time the process got in it.
        total_p50_ms, total_p99_ms: from the arrival of the request, the modelled lead included.
        prefetch_p50_ms: of the prefetch, 0 for inline.
        ready: share of requests whose prefetch was done when rank was called.
        rank_computed, prefetch_computed: mean history tokens computed in the rank call, and before it.
        largest_difference: largest difference of a logit to inline.
        top10_same: share of requests with the same ten best candidates as inline.
    """

    mode: str
    requests: int
    rank_p50_ms: float
    rank_p99_ms: float
    rank_mean_ms: float
    rank_max_ms: float
    rank_max_cpu_ms: float
    total_p50_ms: float
    total_p99_ms: float
    prefetch_p50_ms: float
    ready: float
    rank_computed: float
    prefetch_computed: float
    largest_difference: float
    top10_same: float


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Requests whose history has `low` < events <= `high`; one `ModeStats` per mode."""

    low: int
    high: int
    modes: tuple[ModeStats, ...]


class LatencySection(msgspec.Struct, frozen=True, kw_only=True):
    """Latency with one model.

    Attributes:
        weights: trained or random; with random ones only the times mean something.
        history_tokens: of each request, in the order of `inline_ms`, `relay_ms` and `returning_ms`.
        inline_ms, relay_ms, returning_ms: rank latency of each request, for the plots.
    """

    model: str
    weights: str
    parameters: int
    dtype: str
    kernel: str
    modes: tuple[ModeStats, ...]
    buckets: tuple[Bucket, ...]
    history_tokens: tuple[int, ...]
    inline_ms: tuple[float, ...]
    relay_ms: tuple[float, ...]
    returning_ms: tuple[float, ...]


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Mean quality of one order of the same candidates; `candidates` says whether positives were injected.

    Attributes:
        order: ranker, popularity, recency or retrieval.
        ndcg, hr: at 10. Without injection a next item that retrieval missed counts as a miss.
    """

    candidates: str
    order: str
    requests: int
    ndcg: float
    hr: float


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything; times are in milliseconds unless the name says otherwise."""

    relaygr: str
    command: str
    seed: int
    seconds: float
    machine: MachineNote
    data: DataNote
    training: TrainingNote | None
    cascade: CascadeNote
    latency: tuple[LatencySection, ...]
    quality: tuple[Quality, ...]
