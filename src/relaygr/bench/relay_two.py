"""Two instances: every way to serve under one load, and the simulator held against the real servers."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from relaygr.bench.relay_ground import Ground
from relaygr.bench.relay_loads import Loads, Order, orders
from relaygr.bench.relay_point import Point
from relaygr.bench.relay_result import Ablation, Twin
from relaygr.bench.relay_twin import Load, serve_all
from relaygr.core.units import MIB
from relaygr.sim.tally import Count, Result
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import RELAY_FULL, VARIANTS, Variant

Progress = Callable[[str], None]

SERVERS = 2
# Of each server in the ablations, in prefixes: fewer than the users who come between two visits of one, so
# that a state that is to be used again has to go to host memory and back.
_PREFIXES = 16
_AWAY = 4.0  # times as long between two visits as in the experiments


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers of every kind on one ground.

    Attributes:
        loads: on servers with the settings of `ground`.
        workers: simulations at once.
    """

    ground: Ground
    loads: Loads
    rank_taus: float
    workers: int
    progress: Progress

    async def ablations(self, traffic: Traffic, seeds: Sequence[int]) -> list[Ablation]:
        """Every variant under the same load; one that has no real servers is simulated only.

        Raises:
            BackendError: a server does not work.
        """
        found = []
        for variant in VARIANTS:
            points: list[Point] = []
            for order in self._orders(variant, traffic, seeds) if not variant.remote else ():
                self.progress(f"{SERVERS} servers, {variant.name}, seed {order.traffic.seed}")
                points.append(await self.loads.run(order))
            found.append(
                Ablation(
                    variant=variant.name,
                    regime=traffic.regime,
                    rate=traffic.rate,
                    length=traffic.length,
                    servers=SERVERS,
                    points=tuple(points),
                    simulated=tuple(await self._simulate(variant, traffic, seeds)),
                )
            )
        return found

    async def twin(self, traffic: Traffic, seeds: Sequence[int]) -> Twin:
        """`relay_full` on real servers and simulated, with the same requests.

        Raises:
            BackendError: a server does not work.
        """
        points = []
        for order in self._orders(RELAY_FULL, traffic, seeds):
            self.progress(
                f"{SERVERS} servers against the simulator, {traffic.regime}, seed {order.traffic.seed}"
            )
            points.append(await self.loads.run(order))
        return compare(traffic, points, await self._simulate(RELAY_FULL, traffic, seeds))

    def _orders(self, variant: Variant, traffic: Traffic, seeds: Sequence[int]) -> list[Order]:
        return orders(Order(variant=variant, traffic=traffic, servers=SERVERS, whole=True), seeds)

    async def _simulate(self, variant: Variant, traffic: Traffic, seeds: Sequence[int]) -> list[Result]:
        world = self.ground.world(variant, self.rank_taus, SERVERS)
        loads = [
            Load(world=world, traffic=msgspec.structs.replace(traffic, seed=seed), variant=variant.name)
            for seed in seeds
        ]
        return await asyncio.to_thread(serve_all, loads, self.workers)


def cramped(ground: Ground, length: int) -> Ground:
    """The same with device memory for few prefixes of so many tokens."""
    nbytes = max(_PREFIXES * length * ground.token_bytes, MIB)
    return replace(ground, own=(*ground.own, f"engine.device_bytes={nbytes}"))


def away(traffic: Traffic) -> Traffic:
    """Users who stay away longer between two visits."""
    return msgspec.structs.replace(traffic, gap_taus=_AWAY * traffic.gap_taus)


def compare(traffic: Traffic, points: Sequence[Point], results: Sequence[Result]) -> Twin:
    """Medians over the seeds of both."""
    return Twin(
        regime=traffic.regime,
        rate=traffic.rate,
        length=traffic.length,
        servers=SERVERS,
        seeds=len(points),
        p50_ms=_median(point.latency.p50 for point in points),
        p50_ms_simulated=_median(result.latency.p50 for result in results),
        p99_ms=_median(point.latency.p99 for point in points),
        p99_ms_simulated=_median(result.latency.p99 for result in results),
        hit_share=_median(share(point.paths, "hit", "reloaded") for point in points),
        hit_share_simulated=_median(share(result.paths, "hit", "reloaded") for result in results),
        admitted_share=_median(share(point.signals, "admitted", "hit", "joined") for point in points),
        admitted_share_simulated=_median(share(result.reasons, "admitted") for result in results),
        good_share=_median(point.good / max(point.requests, 1) for point in points),
        good_share_simulated=_median(result.good_share for result in results),
        points=tuple(points),
    )


def share(counted: Sequence[Count], *names: str) -> float:
    """Of what was counted, the part with these names; 0 of nothing."""
    whole = sum(one.count for one in counted)
    return sum(one.count for one in counted if one.name in names) / max(whole, 1)


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else 0.0
