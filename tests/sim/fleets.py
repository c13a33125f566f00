"""Small worlds for tests: a slow model in round numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from relaygr.core.units import KIB, MIB
from relaygr.relay.latency import Coefficients
from relaygr.sim.costs import Costs
from relaygr.sim.fleet import Fleet
from relaygr.sim.tally import Result, Tally
from relaygr.sim.timeline import Timeline
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import variant
from relaygr.sim.visit import Visit
from relaygr.sim.workload import Workload, generate
from relaygr.sim.world import World, budgets_of

# tau = 2 + 0.01 * 2176 + 5e-6 * (2048 * 2049 / 2 + 128 * 2049) = 35.6 ms
COEFFICIENTS = Coefficients(t0_ms=2.0, t1_ms=0.01, t2_ms=5e-6, t_launch_ms=0.5)
COSTS = Costs(coefficients=COEFFICIENTS, token_bytes=KIB, link_bytes_per_s=1e9)


def world(name: str = "relay_full", rank_taus: float = 2.0, **values: Any) -> World:
    values.setdefault("device_bytes", 64 * MIB)
    costs = values.pop("costs", COSTS)
    budgets = budgets_of(costs, rank_taus, chunk_taus=values.pop("chunk_taus", 0.0))
    return World(costs=costs, budgets=budgets, variant=variant(name), **values)


def traffic(load: float, of: World, **values: Any) -> Traffic:
    """`load` requests a tau."""
    return Traffic(rate=load / of.tau_s, tau_s=of.tau_s, **values)


def changed(struct: Any, **values: Any) -> Any:
    return msgspec.structs.replace(struct, **values)


class Watched:
    """A simulation that keeps its visits, and may look at the fleet between any two events."""

    def __init__(self, of: World, load: Traffic | Workload) -> None:
        self.world, self.workload = of, generate(load) if isinstance(load, Traffic) else load
        self.timeline, self.visits = Timeline(), []
        begin_s = float(self.workload.time_s[0])
        self.tally = _Keeping(self.visits, begin_s)
        self.fleet = Fleet(of, self.timeline, self.tally)
        self.fleet.expected = len(self.workload)
        for request in self.workload:
            self.timeline.at(request.time_s, self.fleet.arrive, request)

    def run(self) -> list[Visit]:
        self.timeline.run()
        return self.visits

    def steps(self, count: int = 1) -> Iterator[float]:
        """The times at which something happened, one at a time after every `count`."""
        while self.timeline.step(count):
            yield self.timeline.now_s


class _Keeping(Tally):
    def __init__(self, visits: list[Visit], begin_s: float) -> None:
        super().__init__(begin_s, 1.0)
        self._visits = visits

    def add(self, visit: Visit) -> None:
        super().add(visit)
        self._visits.append(visit)


def even_workload(
    times_s: list[float], users: list[int], tokens: list[int], leads_s: list[float]
) -> Workload:
    """Requests one by one."""
    count = len(times_s)
    seen: set[int] = set()
    first = np.array([not (user in seen or seen.add(user)) for user in users])
    return Workload(
        time_s=np.array(times_s, np.float64),
        user=np.array(users, np.int64),
        before=np.array(tokens, np.int64),
        new=np.zeros(count, np.int64),
        lead_s=np.array(leads_s, np.float64),
        first=first,
        counted=np.ones(count, np.bool_),
        candidates=128,
    )


__all__ = ["COSTS", "Result", "Watched", "changed", "even_workload", "traffic", "world"]
