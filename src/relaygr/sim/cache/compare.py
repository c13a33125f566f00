"""The default policy against all others on made-up days, with and without users who come once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from relaygr.cache.policies import DEFAULT, POLICIES, PolicySettings
from relaygr.core.errors import ConfigError
from relaygr.sim.cache.curve import Capacity, Curve, Progress, draw
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.hits import PLAIN_COSTS, Costs

SHARES = (0.02, 0.05, 0.1, 0.25)
SCAN = 0.3
# What is asked of the default, in cost-hit: not so much behind the best or behind LRU, and so much before LRU
# where one-time users leave the least room.
_BEHIND, _BEFORE = 0.01, 0.05


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of one capacity. `wanted_gain` is None where being about as good as LRU is enough."""

    capacity: str
    cost_hit: float
    best_policy: str
    best: float
    lru: float
    wanted_gain: float | None
    passes: bool


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """All policies on one trace."""

    scan: float
    curve: Curve
    verdicts: tuple[Verdict, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One seed: the plain trace, and the same with one-time users on top."""

    spec: TraceSpec
    tables: tuple[Table, ...]

    @property
    def passes(self) -> bool:
        return all(verdict.passes for table in self.tables for verdict in table.verdicts)


def compare(
    spec: TraceSpec,
    policies: Sequence[str] = POLICIES,
    *,
    costs: Costs = PLAIN_COSTS,
    settings: PolicySettings | None = None,
    token_bytes: int = 1,
    progress: Progress = lambda text: None,
) -> Comparison:
    """Replay the trace of `spec` through all policies, without one-time users and with them.

    Capacities are shares of what the plain trace's users take, in both.

    Raises:
        ConfigError: a policy is unknown, or the default or LRU is missing.
    """
    for needed in (DEFAULT, "lru"):
        if needed not in policies:
            raise ConfigError("policies", f"{needed!r} is missing: the others are compared with it")
    capacities = [Capacity(f"{100 * share:g}%", share=share) for share in SHARES]
    tables = []
    # Both are made before the first is replayed, so that one that is too large is refused at once.
    for one_spec in [replace(spec, scan=scan) for scan in (0.0, spec.scan or SCAN)]:
        trace, scan = generate(one_spec), one_spec.scan
        curve = draw(
            trace,
            policies,
            capacities,
            costs=costs,
            settings=settings,
            token_bytes=token_bytes,
            progress=progress,
        )
        gains = [_BEFORE if scan and share == min(SHARES) else None for share in SHARES]
        verdicts = tuple(judge(curve, one.label, gain) for one, gain in zip(capacities, gains, strict=True))
        tables.append(Table(scan=scan, curve=curve, verdicts=verdicts))
    return Comparison(spec=spec, tables=tuple(tables))


def judge(curve: Curve, capacity: str, wanted_gain: float | None) -> Verdict:
    """How the default stands at a capacity; it must gain so much on LRU if anything is wanted."""
    at = {
        point.policy: point.replay.hits.all.cost_hit for point in curve.points if point.capacity == capacity
    }
    best = max(at, key=lambda policy: at[policy])
    mine, lru = at[DEFAULT], at["lru"]
    least = max(at[best] - _BEHIND, lru + (-_BEHIND if wanted_gain is None else wanted_gain))
    return Verdict(
        capacity=capacity,
        cost_hit=mine,
        best_policy=best,
        best=at[best],
        lru=lru,
        wanted_gain=wanted_gain,
        passes=mine >= least,
    )
