"""How many instances a traffic needs, at a length and within a budget."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from relaygr.sim.lab import Lab
from relaygr.sim.protocol import Outcome
from relaygr.sim.variants import variant

_MOST_INSTANCES = 4096
_MOST_REQUESTS = 40_000


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest instances that pass with one variant.

    Attributes:
        instances: None where not even `tried` are enough.
        outcome: of the load that they passed, or of the last that failed.
        probes: numbers of instances that were tried, in order, and whether they passed.
    """

    variant: str
    instances: int | None
    tried: int
    outcome: Outcome
    probes: tuple[tuple[int, bool], ...]


def size(
    lab: Lab,
    rate: float,
    length: int,
    variants: Sequence[str] = ("inline_full", "relay_full"),
    most: int = _MOST_INSTANCES,
) -> list[Need]:
    """The fewest instances for `rate` requests a second of the whole fleet: doubled, then bisected."""
    return [_fewest(lab, name, rate, length, most) for name in variants]


def _fewest(lab: Lab, name: str, rate: float, length: int, most: int) -> Need:
    tried: dict[int, Outcome] = {}

    def passes(count: int) -> bool:
        world = msgspec.structs.replace(lab.world, instances=count)
        requests = min(lab.traffic.requests * max(count // 4, 1), max(_MOST_REQUESTS, lab.traffic.requests))
        traffic = msgspec.structs.replace(lab.traffic, requests=requests)
        tried[count] = lab.other(world=world, traffic=traffic).probe(name, rate, length)
        return tried[count].passes

    low = min(_busy(lab, name, rate, length), most - 1)
    high = low + 1
    while not passes(high):
        low = high
        if high >= most:
            return _need(name, None, high, tried)
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return _need(name, high, high, tried)


def _busy(lab: Lab, name: str, rate: float, length: int) -> int:
    """So many instances would be busy all the time with what ranking does at least: they are not enough."""
    if lab.traffic.spread or lab.traffic.short_share:
        return 0
    world, candidates = lab.world, lab.traffic.candidates
    fitted = world.costs.coefficients
    # Batches share the fixed part, and users of a session begin with less history.
    ms = fitted.hit_ms(length // 2, 0, candidates) - fitted.t0_ms
    if not variant(name).reuse and not variant(name).ladder:
        ms = fitted.full_ms(length // 2, 0, candidates) - fitted.t0_ms
    return int(rate * ms / 1000 / world.slots)


def _need(name: str, instances: int | None, last: int, tried: dict[int, Outcome]) -> Need:
    probes = tuple((count, outcome.passes) for count, outcome in tried.items())
    return Need(variant=name, instances=instances, tried=max(tried), outcome=tried[last], probes=probes)
