"""`bench relay`: the relay against ranking inline, on real servers with a real model, in units of its tau."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.relay_experiment import Confirming, Effort, parts
from relaygr.bench.relay_ground import LONGEST, Ground, prepare
from relaygr.bench.relay_loads import Loads
from relaygr.bench.relay_result import (
    PAPER,
    PAPER_LENGTH_RATIO,
    PAPER_RATE_RATIO,
    Confirmed,
    RelayReport,
)
from relaygr.bench.relay_servers import Servers
from relaygr.bench.relay_time import Allotment
from relaygr.bench.relay_twin import Question, search_all
from relaygr.bench.relay_wire import clock, new_loop
from relaygr.relay.budgets import TAU_CANDIDATES
from relaygr.sim.experiments import Experiment
from relaygr.sim.traffic import Regime, Traffic
from relaygr.sim.variants import RELAY_FULL

Progress = Callable[[str], None]

_REGIMES: tuple[Regime, ...] = ("first_touch", "sessions")
_WARMUP = 30
_RANK_TAUS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySpec:
    """What to measure.

    Attributes:
        minutes: that all of it may take.
        own: settings of the servers, as `section.key=value`.
    """

    preset: str = "hstu-tiny"
    quick: bool = True
    minutes: float = 4.7
    seed: int = 0
    own: tuple[str, ...] = ()


def bench_relay(spec: RelaySpec, progress: Progress = lambda text: None) -> RelayReport:
    """Measure in a temporary folder, which is gone afterwards.

    Raises:
        BackendError: a server does not start or does not do its work.
        ConfigError: the preset or a setting is wrong.
    """
    with (
        tempfile.TemporaryDirectory(prefix="relaygr-bench-") as name,
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        return runner.run(_quick(Path(name), spec, progress))


async def _quick(folder: Path, spec: RelaySpec, progress: Progress) -> RelayReport:
    begin_s = clock()
    progress("a model with random weights; a server calibrates itself")
    ground = await prepare(folder, spec.preset, spec.seed, spec.own, calibrate_s=4.0, samples=40)
    progress(
        f"tau {ground.speed.tau_ms:.1f} ms (fitted {ground.speed.fitted_tau_ms:.1f}), "
        f"HTTP adds {ground.speed.overhead_ms:.1f} ms; simulating"
    )
    traffics = [Traffic(regime=regime, warmup=_WARMUP, candidates=TAU_CANDIDATES) for regime in _REGIMES]
    simulations = await asyncio.to_thread(_simulate, ground, traffics, (spec.seed,), 1500)
    for one in simulations:
        progress(f"simulated, {one.regime}: {_ratios(one)}")
    effort = Effort(seeds=(spec.seed,), least=300, most=1000, tries=5, rate_step=1.06, longest=LONGEST - 512)
    time = Allotment(begin_s + 60 * spec.minutes, [part for regime in _REGIMES for part in parts(regime)])
    found: list[Confirmed] = []
    async with Servers(folder / "servers") as servers:
        loads = Loads(
            ground.site(_RANK_TAUS), servers, ground.people(TAU_CANDIDATES), ground.limits(_RANK_TAUS)
        )
        for traffic, simulated in zip(traffics, simulations, strict=True):
            confirming = Confirming(loads, traffic, effort, time, progress)
            found.append(await confirming.confirm(simulated))
    return _report(spec, ground, tuple(found), clock() - begin_s)


def _simulate(
    ground: Ground, traffics: list[Traffic], seeds: tuple[int, ...], requests: int
) -> list[Experiment]:
    questions = [
        Question(
            world=ground.world(RELAY_FULL, _RANK_TAUS),
            traffic=msgspec.structs.replace(traffic, requests=requests),
            seeds=seeds,
            regime=traffic.regime,
            rank_taus=_RANK_TAUS,
            candidates=traffic.candidates,
        )
        for traffic in traffics
    ]
    return search_all(questions, usable_cores())


def _ratios(found: Experiment) -> str:
    length, rates = found.lengths.ratio, found.rates
    rate = rates.ratio if rates is not None else None
    return f"length ratio {_two(length)}, rate ratio {_two(rate)}"


def _two(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _report(spec: RelaySpec, ground: Ground, found: tuple[Confirmed, ...], seconds: float) -> RelayReport:
    once, again = found[:2]
    return RelayReport(
        length_ratio=once.length_ratio,
        length_ratio_simulated=once.length_ratio_simulated,
        rate_ratio=once.rate_ratio,
        rate_ratio_simulated=once.rate_ratio_simulated,
        sessions_length_ratio=again.length_ratio,
        sessions_length_ratio_simulated=again.length_ratio_simulated,
        sessions_rate_ratio=again.rate_ratio,
        sessions_rate_ratio_simulated=again.rate_ratio_simulated,
        relay_p99_over_budget=_most(one.p99_over_budget for one in (once, again)),
        relay_p99_over_budget_simulated=_most(one.p99_over_budget_simulated for one in (once, again)),
        paper_length_ratio=PAPER_LENGTH_RATIO,
        paper_rate_ratio=PAPER_RATE_RATIO,
        paper=PAPER,
        quick=spec.quick,
        preset=spec.preset,
        dtype=ground.dtype,
        cpu=cpu_model(),
        cores=usable_cores(),
        seeds=(spec.seed,),
        seconds=round(seconds, 1),
        speed=ground.speed,
        settings=ground.site(_RANK_TAUS).of(RELAY_FULL),
        notes=(),
        experiments=found,
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
