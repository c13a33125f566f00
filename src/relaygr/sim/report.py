"""What `relaygr simulate` finds out in one go, and writes to its file."""

from __future__ import annotations

import time

import msgspec
from msgspec.structs import replace

from relaygr.core.errors import ConfigError
from relaygr.sim.experiments import Experiment, experiments
from relaygr.sim.lab import Lab, Progress, silent
from relaygr.sim.protocol import BASE_LENGTH
from relaygr.sim.sizing import Need
from relaygr.sim.sweeps import Bench, Scale, Sweep
from relaygr.sim.tally import Result
from relaygr.sim.traffic import Regime, Traffic
from relaygr.sim.world import World

# Of the highest rate that passes: where sweeps are made, so that there is something to lose and to gain.
_OPERATING_SHARE = 0.8


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All experiments, ablations and sweeps.

    Attributes:
        world: without the scatter of its costs; `scatter` says whether there was any.
        tau_ms: the machine's own clock.
        rates: requests a second at which the sweeps were made, by regime; `length` their histories.
        seconds: that all of it took.
    """

    world: World
    scatter: bool
    traffic: Traffic
    seeds: tuple[int, ...]
    tau_ms: float
    experiments: list[Experiment]
    rates: dict[Regime, float]
    length: int
    ablations: list[Sweep]
    sweeps: list[Sweep]
    scale: list[Scale]
    seconds: float


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One load, served by several variants; `results` in their order."""

    world: World
    traffic: Traffic
    tau_ms: float
    variants: tuple[str, ...]
    results: tuple[Result, ...]
    seconds: float


class SizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances a traffic needs."""

    world: World
    traffic: Traffic
    tau_ms: float
    rate: float
    length: int
    needs: list[Need]
    seconds: float


def everything(lab: Lab, *, quick: bool = False, instances: int = 4, progress: Progress = silent) -> Report:
    """E1 and E2 on one instance, at the rank budget and at half as much again; then the rest on several.

    Args:
        quick: fewer points of everything.

    Raises:
        ConfigError: the baseline passes at no rate, so that there is no operating point.
    """
    began = time.monotonic()
    taus = lab.world.budgets.b_rank_ms / (1000 * lab.world.tau_s)
    found = experiments(lab, (taus,) if quick else (taus, 1.5 * taus))
    rates: dict[Regime, float] = {}
    length = BASE_LENGTH
    for one in found[:2]:
        if one.rates is None or one.rates.relay.best is None:
            raise ConfigError("budgets.b_rank_ms", f"{one.regime}: nothing passes at {one.rank_taus:g} tau")
        regime: Regime = "first_touch" if one.regime == "first_touch" else "sessions"
        rates[regime] = _OPERATING_SHARE * instances * one.rates.relay.best
        length = one.rates.length if regime == "first_touch" else length
    many = lab.other(world=replace(lab.world, instances=instances))
    bench = Bench(many, rates, length, progress)
    factors = (0.5, 1.0) if quick else (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    ablations = [bench.variants("first_touch", factors), bench.variants("sessions", factors)]
    sweeps = [bench.normal(factors), bench.host_hits(), bench.popular(), bench.bursts()]
    sweeps += [bench.interference(), bench.kill(), bench.scaling(), bench.rollout()]
    scale = bench.scale((1, 2) if quick else (1, 2, 4, 8))
    return Report(
        world=bare(many.world),
        scatter=bool(lab.world.costs.scatter),
        traffic=lab.traffic,
        seeds=lab.seeds,
        tau_ms=1000 * lab.world.tau_s,
        experiments=found,
        rates=rates,
        length=length,
        ablations=ablations,
        sweeps=sweeps,
        scale=scale,
        seconds=time.monotonic() - began,
    )


def bare(world: World) -> World:
    """The world as it is reported: without the table of its scatter."""
    return replace(world, costs=replace(world.costs, scatter=()))
