"""The highest rate that passes: double until one fails, bisect, confirm with other arrivals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from relaygr.bench.serve_report import LoadResult, Search
from relaygr.bench.serve_spec import MAX_RATE, SloSpec

Probe = Callable[[float, int], Awaitable[LoadResult]]
"""A load of so many visits a second, with arrivals of a seed."""

_LOWEST = 0.1


def passes(result: LoadResult, slo: SloSpec) -> bool:
    """Whether enough of all visits due, missed ones included, got a whole answer in time."""
    return result.visits > 0 and result.good >= slo.share * result.visits


async def find_slo(
    probe: Probe, start: float, slo: SloSpec, progress: Callable[[str], None] = lambda text: None
) -> Search:
    """Search from `start` visits a second on; every probe is in the answer, in order.

    Noise can pass a rate once that fails the next time, so the best rate must pass twice, the second time
    with other arrivals. Where it does not, the search goes on below it.
    """
    probes: list[LoadResult] = []

    async def passing(rate: float) -> bool:
        result = await probe(rate, len(probes))
        probes.append(result)
        good = passes(result, slo)
        progress(f"{rate:.3g}/s {'passes' if good else 'fails'}: {result.good_share:.2%} good")
        return good

    def search(best: float | None, ended: str) -> Search:
        return Search(slo_ms=slo.slo_ms, share=slo.share, best_rps=best, ended=ended, probes=probes)

    best, worst, rate = 0.0, 0.0, start
    confirmed = False
    while len(probes) < slo.most:
        if await passing(rate):
            confirmed = rate == best
            best = rate
        else:
            worst = rate
            if rate <= best:
                best, confirmed = 0.0, False
        if confirmed and worst and worst <= best * (1 + slo.resolution):
            return search(best, "a rate this close above it fails")
        if confirmed and best >= MAX_RATE:
            return search(best, f"the client makes no more than {MAX_RATE:g}/s")
        if worst and worst <= _LOWEST:
            return search(None, f"{worst:g}/s fails")
        rate = _next(best, worst, slo.resolution)
    return search(best if confirmed else None, f"{slo.most} probes are made")


def _next(best: float, worst: float, resolution: float) -> float:
    """The rate to try after `best` passed and `worst` failed; 0 is none of either."""
    if not worst:
        return min(2 * best, MAX_RATE)
    if not best:
        return max(worst / 2, _LOWEST)
    if worst <= best * (1 + resolution):
        return best  # once more, to confirm it
    return (best + worst) / 2
