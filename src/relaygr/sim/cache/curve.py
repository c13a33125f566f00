"""Hit ratios of policies over capacities, beside the ceilings that no policy can pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from relaygr.cache.policies import POLICIES, PolicySettings, make
from relaygr.core.errors import ConfigError
from relaygr.core.units import format_bytes
from relaygr.sim.cache.hits import PLAIN_COSTS, Costs, Hits, ceiling
from relaygr.sim.cache.replay import Replay, prepare, replay
from relaygr.sim.cache.trace import Trace

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of a tier: a share of what all users take, if not 0, or bytes."""

    label: str
    share: float = 0.0
    nbytes: int = 0

    def of(self, base_bytes: int) -> int:
        return int(self.share * base_bytes) if self.share else self.nbytes


class Stock(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace is made of.

    Attributes:
        hours: from the first request to the last.
        warmup: requests that are not counted.
        footprint_bytes: of all users, each at its longest.
        base_bytes: what shares of capacity refer to; less where one-time users came on top.
        user_bytes: mean of all users at their longest.
        ceiling_day, ceiling: of all requests, and of those that are counted.
    """

    name: str
    requests: int
    users: int
    hours: float
    warmup: int
    footprint_bytes: int
    base_bytes: int
    user_bytes: float
    ceiling_day: Hits
    ceiling: Hits


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one capacity; `fits` is whether all users fit, so that no policy matters."""

    policy: str
    capacity: str
    capacity_bytes: int
    fits: bool
    replay: Replay
    seconds: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """All points, by capacity and, within one, by policy in the order that was asked for."""

    stock: Stock
    costs: Costs
    settings: dict[str, Any]
    token_bytes: int
    page_tokens: int
    points: tuple[Point, ...]
    warnings: tuple[str, ...]
    seconds: float

    def point(self, policy: str, capacity: str) -> Point:
        """KeyError if there is none."""
        for point in self.points:
            if (point.policy, point.capacity) == (policy, capacity):
                return point
        raise KeyError(policy, capacity)


def draw(
    trace: Trace,
    policies: Sequence[str],
    capacities: Sequence[Capacity],
    *,
    costs: Costs = PLAIN_COSTS,
    settings: PolicySettings | None = None,
    token_bytes: int = 1,
    page_tokens: int = 1,
    progress: Progress = lambda text: None,
) -> Curve:
    """Replay a trace through every policy at every capacity.

    Raises:
        ConfigError: a policy is unknown, a capacity holds no token, or a size is out of range.
    """
    began, settings = time.monotonic(), settings or PolicySettings()
    check_policies(policies)
    course = prepare(trace, costs, token_bytes, page_tokens)
    stock = stock_of(trace, costs, token_bytes, page_tokens)
    sizes = [(one, one.of(stock.base_bytes)) for one in capacities]
    for one, nbytes in sizes:
        if nbytes < token_bytes * page_tokens:
            least = token_bytes * page_tokens
            raise ConfigError("capacities", f"{one.label!r} is {nbytes} bytes, a page takes {least}")
    points: list[Point] = []
    for one, nbytes in sizes:
        for policy in policies:
            place = f"{len(points) + 1} of {len(sizes) * len(policies)}"
            progress(f"{trace.name}: {policy} at {one.label}, {place}")
            start = time.monotonic()
            result = replay(course, make(policy, nbytes, settings), nbytes)
            points.append(
                Point(
                    policy=policy,
                    capacity=one.label,
                    capacity_bytes=nbytes,
                    fits=nbytes >= stock.footprint_bytes,
                    replay=result,
                    seconds=time.monotonic() - start,
                )
            )
    return Curve(
        stock=stock,
        costs=costs,
        settings=asdict(settings),
        token_bytes=token_bytes,
        page_tokens=page_tokens,
        points=tuple(points),
        warnings=warnings_of(stock, sizes, points),
        seconds=time.monotonic() - began,
    )


def check_policies(policies: Sequence[str]) -> None:
    """Raise ConfigError unless there are policies, and all of them are known."""
    if not policies:
        raise ConfigError("policies", f"none is given; there are {', '.join(POLICIES)}")
    for policy in policies:
        if policy not in POLICIES:
            raise ConfigError("policies", f"{policy!r} is none of {', '.join(POLICIES)}")


def stock_of(trace: Trace, costs: Costs, token_bytes: int = 1, page_tokens: int = 1) -> Stock:
    """Sizes and ceilings of a trace."""
    pages = -(-trace.peaks // page_tokens)
    footprint = int(pages.sum()) * page_tokens * token_bytes
    base = footprint * trace.base_tokens // max(trace.footprint_tokens, 1)
    return Stock(
        name=trace.name,
        requests=len(trace),
        users=trace.users,
        hours=float(np.ptp(trace.time_ms)) / 3.6e6,
        warmup=trace.warmup,
        footprint_bytes=footprint,
        base_bytes=base,
        user_bytes=footprint / trace.users,
        ceiling_day=ceiling(trace, costs),
        ceiling=ceiling(trace, costs, trace.warmup),
    )


def warnings_of(
    stock: Stock, sizes: Sequence[tuple[Capacity, int]], points: Sequence[Point]
) -> tuple[str, ...]:
    """What makes the figures say less than they seem to."""
    found = [
        f"{one.label}: all {stock.users:,} users fit ({format_bytes(stock.footprint_bytes)}); what is hit is "
        "the ceiling and says nothing about a policy"
        for one, nbytes in sizes
        if nbytes >= stock.footprint_bytes
    ]
    found += [
        f"{point.capacity}, {point.policy}: {point.replay.moves.refused:,} histories were too long for it"
        for point in points
        if point.replay.moves.refused
    ]
    per_user = stock.requests / stock.users
    if per_user < 2:
        found.append(f"{per_user:.1f} requests a user: most of them come for the first time, and cannot hit")
    return tuple(found)
