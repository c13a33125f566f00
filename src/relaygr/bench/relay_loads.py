"""Runs loads: any variant at any rate and length, on servers that run already, with users new to them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from relaygr.bench.relay_play import Player, forget, store
from relaygr.bench.relay_point import Point, make_point
from relaygr.bench.relay_script import Limits, write_script
from relaygr.bench.relay_servers import Servers, Site
from relaygr.bench.relay_users import People
from relaygr.sim.protocol import GOOD_SHARE
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import Variant
from relaygr.sim.workload import generate

# Of the time in which nothing is due, what is left, in units of tau. A relay measures its load and meets more
# than that of the schedule; with much less, it would refuse signals.
_IDLE_TAUS, _RELAY_IDLE_TAUS = 0.5, 1.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One load to run.

    Attributes:
        rate: requests a second, of all servers together.
        requests: that count; `warmup` come before.
        whole: run to the end and without leaving out idle time, for comparing distributions.
    """

    variant: Variant
    traffic: Traffic
    servers: int = 1
    whole: bool = False


class Loads:
    """Loads on real servers, one at a time."""

    def __init__(self, site: Site, servers: Servers, people: People, limits: Limits) -> None:
        self.site, self.limits = site, limits
        self._servers, self._people = servers, people
        self._runs = itertools.count()

    async def run(self, order: Order) -> Point:
        """Run one load and forget its users.

        Raises:
            BackendError: a server does not start, or does not take the users.
        """
        variant, traffic = order.variant, order.traffic
        doors = await self._servers.doors(self.site.of(variant), order.servers)
        workload = generate(traffic)
        script = write_script(
            variant, workload, self._people, self.limits, f"r{next(self._runs)}", order.servers, traffic.seed
        )
        await store(doors, script)
        bad_most = None if order.whole else math.floor((1 - GOOD_SHARE) * traffic.requests + 1e-9)
        # What shortens histories on purpose is never given up for that.
        if variant.ladder and not variant.relay:
            bad_most = None
        idle_s = None if order.whole else idle_taus(variant) * self.limits.tau_ms / 1000
        played = await Player(doors, script, bad_most=bad_most, idle_s=idle_s).run()
        self._servers.check()
        await forget(doors, script)
        return make_point(played, script, variant, traffic)


def idle_taus(variant: Variant) -> float:
    """Longest time that a search's load leaves a server without a request."""
    return _RELAY_IDLE_TAUS if variant.relay else _IDLE_TAUS


def traffic_of(limits: Limits, base: Traffic, rate: float, length: int, requests: int, seed: int) -> Traffic:
    """`base` at a rate and length; what a search varies."""
    return msgspec.structs.replace(
        base,
        tau_s=limits.tau_ms / 1000,
        rate=rate,
        length=length,
        most_length=max(base.most_length, length),
        requests=requests,
        seed=seed,
    )


def seconds_of(limits: Limits, variant: Variant, traffic: Traffic) -> float:
    """About how long a load takes, its users' histories included; for planning."""
    tau_s = limits.tau_ms / 1000
    pass_taus = (traffic.length / 2048) ** 1.5
    # From the trigger to the answer where that is watched, else the pass.
    open_taus = traffic.leads.p50_taus + 0.6 if variant.relay else 1.2 * pass_taus
    each_s = min(1 / traffic.rate, (idle_taus(variant) + open_taus) * tau_s)
    first = 1.0 if traffic.regime == "first_touch" else 1 / traffic.session_requests
    warmup = traffic.warmup
    if traffic.regime == "sessions":
        warmup += int(traffic.warmup_taus * tau_s * traffic.rate)
    store_s = 0.004 * traffic.length / 2048 * first
    return (traffic.requests + warmup) * (each_s + store_s)


def orders(base: Order, seeds: Sequence[int]) -> list[Order]:
    """The same load with other draws."""
    return [
        msgspec.structs.replace(base, traffic=msgspec.structs.replace(base.traffic, seed=seed))
        for seed in seeds
    ]
