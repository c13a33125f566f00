"""What pre-inference does to ranking: P99 beside an instance full of it, against P99 without."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from dataclasses import replace

import msgspec

from relaygr.bench.serve_load import Load, Progress
from relaygr.bench.serve_report import LoadResult
from relaygr.bench.serve_spec import LoadSpec
from relaygr.bench.serve_users import Crowd
from relaygr.bench.serve_wire import READ_PREFIX, Wire
from relaygr.core.errors import BackendError

# Between two signals to a server whose queue of prefixes is full.
_PAUSE_S = 0.05
_STEPS = ("relaygr_preinfer_chunk_seconds_sum", "relaygr_preinfer_chunk_seconds_count")


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One load with and one without pre-inference, with the same arrivals.

    Attributes:
        chunk_ms: mean of the prefetch steps that ran beside the ranking.
        saturation: share of the time that the instance computed prefixes.
        hit_share: of the rankings beside it that found their whole prefix in the cache.
        ratio: (P99 with - chunk_ms) / P99 without.
    """

    p50_without_ms: float
    p50_with_ms: float
    p99_without_ms: float
    p99_with_ms: float
    chunk_ms: float
    saturation: float
    ratio: float
    rankings: int
    hit_share: float


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the pairs."""

    interference_ratio: float
    chunk_ms: float
    errors: int
    pairs: list[Pair]


async def measure_interference(
    wire: Wire, ranked: Crowd, others: Crowd, spec: LoadSpec, pairs: int, progress: Progress
) -> Interference:
    """Rank the users of `ranked`, whose prefixes are cached; `others` are prefetched beside that or not.

    The order within a pair alternates, so that a slow minute does not always hit the same side.

    Raises:
        BackendError: nothing was ranked, or no step ran where steps had to run.
    """
    found: list[Pair] = []
    errors = 0
    for number in range(pairs):
        progress(f"interference, {number + 1} of {pairs}")
        load = Load(wire, ranked, replace(spec, seed=spec.seed + number))
        again = Load(wire, ranked, replace(spec, seed=spec.seed + number))
        for user in range(len(ranked.names)):
            await wire.demand("POST", "/v1/rank", ranked.rank(user))
        if number % 2:
            beside = await _beside(wire, again, others)
            alone = await load.run()
        else:
            alone = await load.run()
            beside = await _beside(wire, again, others)
        errors += alone.errors + beside[0].errors
        found.append(_pair(alone, *beside))
    return Interference(
        interference_ratio=statistics.median(pair.ratio for pair in found),
        chunk_ms=statistics.median(pair.chunk_ms for pair in found),
        errors=errors,
        pairs=found,
    )


async def _beside(wire: Wire, load: Load, others: Crowd) -> tuple[LoadResult, float, float, float]:
    """The load, and (seconds in steps, steps, seconds in all) of the prefetching beside it."""
    clock = asyncio.get_running_loop().time
    begin_s, before = clock(), await _steps(wire)
    filling = asyncio.create_task(_fill(wire, others))
    try:
        result = await load.run()
        if filling.done():
            filling.result()
    finally:
        filling.cancel()
    after = await _steps(wire)
    return result, after[0] - before[0], after[1] - before[1], clock() - begin_s


async def _fill(wire: Wire, others: Crowd) -> None:
    """Keep the queue of prefixes full: signal user after user, pause when the server has enough."""
    for number in itertools.cycle(range(len(others.names))):
        while True:
            body = await wire.demand("POST", "/v1/prefix", others.prefix(number))
            if READ_PREFIX.decode(body).admission == "admitted":
                break
            # Signals that start nothing are no pre-inference, only load on the way in.
            await asyncio.sleep(_PAUSE_S)
            if READ_PREFIX.decode(body).admission != "rejected":
                break


async def _steps(wire: Wire) -> tuple[float, float]:
    text = (await wire.demand("GET", "/metrics")).decode()
    return total(text, _STEPS[0]), total(text, _STEPS[1])


def total(text: str, name: str) -> float:
    """The sum of a series over its labels in Prometheus' text form; BackendError if there is none."""
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " ")
    ]
    if not values:
        raise BackendError(f"/metrics has no {name}")
    return sum(values)


def _pair(alone: LoadResult, beside: LoadResult, step_s: float, steps: float, whole_s: float) -> Pair:
    without, with_ = alone.latency("rank"), beside.latency("rank")
    if without is None or with_ is None:
        raise BackendError("no ranking was answered")
    if steps < 1:
        raise BackendError("no step of a prefetch ran beside the ranking")
    chunk_ms = 1000 * step_s / steps
    return Pair(
        p50_without_ms=without.p50_ms,
        p50_with_ms=with_.p50_ms,
        p99_without_ms=without.p99_ms,
        p99_with_ms=with_.p99_ms,
        chunk_ms=chunk_ms,
        saturation=step_s / whole_s,
        ratio=(with_.p99_ms - chunk_ms) / without.p99_ms,
        rankings=without.count + with_.count,
        hit_share=(hits.count if (hits := beside.latency("rank", "hit")) is not None else 0) / with_.count,
    )
