"""What a scheduler, a store and an HTTP server would tell, made up for the tests of whoever counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from relaygr.cache.interface import Cause as Leaving
from relaygr.cache.interface import DiskStats, HostStats, Stats
from relaygr.cache.shadow import ShadowReport
from relaygr.cache.tally import Ceilings, Counts, Kind, Sums, Tier, Use, Visit
from relaygr.core.errors import BackendError, CancelledError, DeadlineError
from relaygr.core.ids import Fingerprint
from relaygr.engine.courier import CopyStats
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import Admission, Flight, Load, PrefixAnswer, RankJob
from relaygr.engine.laps import RelayState
from relaygr.engine.requests import Path, PrefetchResult, RankRequest, RankResult
from relaygr.memory.lane import LaneStats
from relaygr.relay.holds import Cause
from relaygr.relay.ratios import ErrorRatio
from relaygr.relay.trigger import Reason, Verdict
from relaygr.serving.cache_gauges import CacheReadings
from relaygr.serving.cache_watch import Watched
from relaygr.serving.gauges import Readings
from relaygr.serving.metrics import Metrics
from relaygr.serving.snapshot import ModelFacts

FIRST, SECOND = bytes(range(16)), bytes(range(1, 17))
HISTORY = UserHistory("secret-user", [1, 2, 3], [10, 20, 30])
ALL_CAUSES = tuple((cause, 5) for cause in Leaving)
POOL = Stats(
    total_pages=100,
    free_pages=50,
    pinned_pages=20,
    evictable_pages=30,
    page_bytes=4096,
    entries=7,
    leases=2,
    evictions=5,
    overdue=1,
    refused=(),
    departures=ALL_CAUSES,
    page_tokens=32,
)
RELAY = RelayState(
    live_bytes=(("ready", 4096),),
    bound_bytes=1 << 20,
    entries=1,
    q_rate_per_s=10.0,
    q_load_per_s=20.0,
    lead_ms=80.0,
    t_life_ms=300.0,
    rank_share=0.2,
    ready_ratio=0.9,
    return_ratio=0.5,
    steps=(("compute", 1),),
    reloads_skipped=(("late", 1),),
    precision=0.8,
    recall=0.9,
    enabled=True,
)
HOST = HostStats(
    total_chunks=10,
    free_chunks=4,
    pinned_chunks=1,
    evictable_chunks=5,
    chunk_tokens=1024,
    chunk_bytes=4096,
    entries=3,
    runs=4,
    evictions=2,
    loads=3,
    stores=5,
    moving=1,
    superseded=1,
    damaged=1,
    lost_tokens=7,
    restored=2,
    restore_rejected=1,
    departures=ALL_CAUSES,
)
DISK = DiskStats(1 << 20, 1 << 19, 1 << 18, 4096, 2, 3, 4, 5, 1, 0, 1, 1, 1, 1, "full", ALL_CAUSES)
CACHE = CacheReadings(
    watched=Watched(
        Counts(
            Sums(4, 900, 9.0),
            {Kind(tier, Visit.RETURNING, Use.USED): Sums(1, 90, 0.9) for tier in Tier},
            Ceilings(0.9, 0.8, 0.7),
        ),
        (ShadowReport("lru", 10, 3.0, 4.0, 50.0, 30.0), ShadowReport("tlru", 10, 3.0, 4.0, 50.0, math.inf)),
    ),
    decisions=(("load", 2), ("recompute", 1), ("split", 1), ("device", 4)),
    copies=CopyStats(
        h2d=LaneStats(bytes_total=100, busy_s=0.1, done=2), d2h=LaneStats(bytes_total=50, busy_s=0.1)
    ),
    copied=(30, 40),
    disk_bytes=(10, 20),
    disk_missing=False,
    drift=0.001,
    lease_s=0.2,
    pool=replace(POOL, host=HOST, disk=DISK),
)
READINGS = Readings(
    cache=CACHE,
    relay=RELAY,
    load=Load(3, 4, True),
    pool=replace(POOL, host=HOST, disk=DISK),
    error=ErrorRatio(samples=100, median=1.0, p99=1.4, mean_error=0.07),
    in_progress=9,
    users=12,
    users_bytes=34_567,
)


def facts(fingerprint: bytes = FIRST, loaded_s: float = 1_700_000_000.0) -> ModelFacts:
    return ModelFacts(
        name="ranker", fingerprint=fingerprint.hex(), dtype="fp32", kernel="cpu", loaded_s=loaded_s
    )


def tell_ranked(
    metrics: Metrics,
    now_s: float,
    *,
    path: Path = Path.HIT,
    cached: int = 300,
    computed: int = 0,
    queue_s: float = 0.002,
    compute_s: float = 0.008,
    truncated: bool = False,
    model: bytes = FIRST,
) -> None:
    """A request that ended at `now_s`."""
    queued_s = now_s - queue_s - compute_s
    job = RankJob(RankRequest(HISTORY, [1]), queued_s + 0.5, queued_s)
    job.started_s, job.done_s = queued_s + queue_s, now_s
    job.kept_events = 1 if truncated else None
    served = PrefetchResult(path, cached, computed, True, "", Fingerprint(model))
    metrics.ranked(job, RankResult(("engage",), np.zeros((1, 1), np.float32), served))


def tell_everything(metrics: Metrics, now_s: float) -> None:
    """Whatever can happen, at least once, ending at `now_s`."""
    metrics.read_from(lambda: READINGS)
    metrics.serve(facts(), rank_budget_ms=50.0)
    tell_ranked(metrics, now_s)
    tell_ranked(metrics, now_s, path=Path.RESUMED, cached=256, computed=44)
    tell_ranked(metrics, now_s, path=Path.FULL, cached=0, computed=300)
    tell_ranked(metrics, now_s, path=Path.FULL, cached=0, computed=128, truncated=True)
    flight = Flight(HISTORY, now_s + 1, now_s - 0.02)
    answers = [
        PrefixAnswer(Admission.ADMITTED, "", 300, 0, flight),
        PrefixAnswer(Admission.JOINED, "", 300, 0, flight),
        PrefixAnswer(Admission.HIT, "", 300, 300, None),
        PrefixAnswer(Admission.REJECTED, "load", 300, 128, None),
    ]
    for answer in answers:
        metrics.signalled(answer)
    flight.reloaded = True
    flight.steps, flight.started_s, flight.done_s = 1, now_s - 0.01, now_s
    metrics.stepped(flight, 0.004)
    flight.resolve(PrefetchResult(Path.FULL, 0, 300, True, "", Fingerprint(FIRST)))
    for stage in ("rank", "prefix"):
        metrics.failed(stage, DeadlineError("late"))
        metrics.failed(stage, CancelledError("gone"))
        metrics.failed(stage, BackendError("broken"))
    metrics.decided(Verdict(Reason.ADMITTED), 0.00002)
    metrics.lead(0.08, True)
    metrics.left(Cause.ORPHAN)
    metrics.shadowed(1e-7, True)
    metrics.disconnected("rank")
    metrics.appended(5, 2)
    metrics.answered("/v1/rank", 200, 0.011)
    metrics.answered("/v1/rank", 503, 0.001)
