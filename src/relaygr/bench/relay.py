"""`bench relay`: the relay against ranking inline, on real servers with a real model, in units of its tau."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from relaygr.bench.machine import usable_cores
from relaygr.bench.relay_experiment import Case, Confirming, Effort
from relaygr.bench.relay_ground import Ground, prepare
from relaygr.bench.relay_loads import Loads, traffic_of
from relaygr.bench.relay_report import report
from relaygr.bench.relay_result import Ablation, Confirmed, RelayReport, Twin
from relaygr.bench.relay_servers import Servers
from relaygr.bench.relay_spec import RANK_TAUS, RelaySpec
from relaygr.bench.relay_speed import Lonely
from relaygr.bench.relay_steady import Probe
from relaygr.bench.relay_time import Allotment
from relaygr.bench.relay_twin import Answer, Question, search_all
from relaygr.bench.relay_two import Pair, away, cramped
from relaygr.bench.relay_wire import clock, new_loop
from relaygr.relay.budgets import TAU_CANDIDATES, TAU_HISTORY
from relaygr.sim.experiments import Experiment
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import INLINE_FULL, RELAY_FULL

Progress = Callable[[str], None]

_SIMULATED_REQUESTS = 1000
# Of the two servers together, in requests a tau: what a machine with a core for each serves with ease.
_TWIN_RATES = {"first_touch": 0.2, "sessions": 0.4}
_TWIN_REQUESTS, _ABLATION_REQUESTS = 300, 400
# A look at the machine's speed after a failed load, and what of all the time is given to waiting for it.
_PROBE_S, _PROBE_LEAST, _WAIT_SHARE = 1.0, 10, 0.2
# Of the full run's time, what the searches get; the rest is for two servers.
_SEARCH_SHARE = 0.78


def bench_relay(spec: RelaySpec, progress: Progress = lambda text: None) -> RelayReport:
    """Measure in a temporary folder, which is gone afterwards.

    Raises:
        BackendError: a server does not start or does not do its work.
        ConfigError: a setting is wrong.
    """
    with (
        tempfile.TemporaryDirectory(prefix="relaygr-bench-") as name,
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        return runner.run(_Bench(Path(name), spec, progress).run())


class _Bench:
    def __init__(self, folder: Path, spec: RelaySpec, progress: Progress) -> None:
        self._folder, self._spec, self._progress = folder, spec, progress
        self._begin_s = clock()
        self._probes: list[Probe] = []
        self._load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None

    async def run(self) -> RelayReport:
        spec = self._spec
        self._progress("a model with random weights; a server calibrates itself")
        ground = await prepare(
            self._folder,
            spec.preset,
            spec.seed,
            spec.own,
            calibrate_s=4.0 if spec.quick else 20.0,
            seconds=20.0 if spec.quick else 60.0,
            dtype=spec.dtype,
        )
        speed = ground.speed
        self._progress(
            f"tau {speed.tau_ms:.1f} ms (P10 {speed.p10_ms:.1f}, P50 {speed.median_ms:.1f}, P90 "
            f"{speed.p90_ms:.1f}; {speed.fitted_tau_ms:.1f} by its calibration), HTTP adds "
            f"{speed.overhead_ms:.1f} ms"
        )
        found = await self._searches(ground)
        ablations: list[Ablation] = []
        twins: list[Twin] = []
        if not spec.quick:
            twins = await self._twins(ground)
        if not spec.quick and not spec.twin:
            ablations = await self._ablations(ground, found)
        seconds = clock() - self._begin_s
        waited_s = sum(probe.waited_s for probe in self._probes)
        return report(spec, ground, found, ablations, twins, seconds, self._load_before, waited_s)

    async def _searches(self, ground: Ground) -> list[Confirmed]:
        spec, cases = self._spec, self._spec.cases()
        if not cases:
            return []
        self._progress("simulating the searches")
        answers = await asyncio.to_thread(_simulate, ground, cases, spec.seeds[:3], spec.effort())
        for case, answer in zip(cases, answers, strict=True):
            self._progress(f"simulated, {case.name}: {_ratios(answer.found)}; seed {answer.seed}")
        share = 1.0 if spec.quick else _SEARCH_SHARE
        end_s = self._begin_s + 60 * share * spec.minutes
        time = Allotment(end_s, [part for case in cases for part in case.parts()])
        found: list[Confirmed] = []
        pace = 1.0
        pairs = zip(cases, answers, strict=True)
        # Servers are kept while budgets stay the same.
        for rank_taus, group in itertools.groupby(pairs, lambda pair: pair[0].rank_taus):
            async with Servers(self._folder / f"servers-{rank_taus:g}") as servers:
                (door,) = await servers.doors(ground.site(rank_taus).of(INLINE_FULL))
                lonely = Lonely(door, ground.people(TAU_CANDIDATES))
                steady = self._steady(ground, lonely)
                for case, answer in group:
                    loads = self._loads(ground, servers, rank_taus, case.traffic.candidates)
                    effort = replace(spec.effort(), seeds=(answer.seed, *spec.seeds[1:]))
                    confirming = Confirming(loads, case, effort, time, steady, self._progress)
                    found.append(await confirming.confirm(answer.found, pace))
                    pace = found[-1].base.pace or pace
        return found

    def _steady(self, ground: Ground, lonely: Lonely) -> Probe:
        async def passes() -> list[float]:
            return [one.pass_ms for one in await lonely.time(_PROBE_S, _PROBE_LEAST)]

        probe = Probe(passes, ground.speed, 60 * _WAIT_SHARE * self._spec.minutes)
        self._probes.append(probe)
        return probe

    async def _twins(self, ground: Ground) -> list[Twin]:
        found = []
        async with Servers(self._folder / "servers-twin") as servers:
            pair = self._pair(ground, servers)
            for case in replace(self._spec, quick=True, twin=False).cases():
                traffic = self._fixed(ground, case.traffic, _TWIN_RATES[case.traffic.regime], _TWIN_REQUESTS)
                found.append(await pair.twin(traffic, self._spec.seeds))
        return found

    async def _ablations(self, ground: Ground, found: Sequence[Confirmed]) -> list[Ablation]:
        again = away(self._spec.cases()[1].traffic)
        traffic = self._fixed(ground, again, ablation_rate_taus(found[1]), _ABLATION_REQUESTS)
        async with Servers(self._folder / "servers-ablations") as servers:
            pair = self._pair(cramped(ground, TAU_HISTORY), servers)
            return await pair.ablations(traffic, self._spec.seeds[:1])

    def _pair(self, ground: Ground, servers: Servers) -> Pair:
        loads = self._loads(ground, servers, RANK_TAUS, TAU_CANDIDATES)
        return Pair(ground, loads, RANK_TAUS, usable_cores(), self._progress)

    def _fixed(self, ground: Ground, base: Traffic, rate_taus: float, requests: int) -> Traffic:
        limits = ground.limits(RANK_TAUS)
        rate = 1000 * rate_taus / limits.tau_ms
        return traffic_of(limits, base, rate, TAU_HISTORY, requests, self._spec.seed)

    @staticmethod
    def _loads(ground: Ground, servers: Servers, rank_taus: float, candidates: int) -> Loads:
        return Loads(ground.site(rank_taus), servers, ground.people(candidates), ground.limits(rank_taus))


def _simulate(ground: Ground, cases: Sequence[Case], seeds: tuple[int, ...], effort: Effort) -> list[Answer]:
    questions = [
        Question(
            world=ground.world(RELAY_FULL, case.rank_taus, undisturbed=effort.again),
            traffic=msgspec.structs.replace(case.traffic, requests=_SIMULATED_REQUESTS),
            seeds=seeds,
            regime=case.traffic.regime,
            rank_taus=case.rank_taus,
            candidates=case.traffic.candidates,
            # Where single runs of single seeds decide.
            short=effort.least_length if effort.votes == len(effort.seeds) == 1 else 0,
        )
        for case in cases
    ]
    return search_all(questions, usable_cores())


def ablation_rate_taus(again: Confirmed) -> float:
    """Half of the relay's highest rate in sessions, in requests a tau.

    Where no load of its own passed, the best is a bound from another search and says nothing of speed.
    """
    highest = again.relay_rate
    if highest is None or highest.best is None or not highest.runs:
        return _TWIN_RATES["sessions"]
    return 0.5 * highest.best * again.limits.tau_ms / 1000


def _ratios(found: Experiment) -> str:
    rates = found.rates
    return f"length ratio {two(found.lengths.ratio)}, rate ratio {two(rates.ratio if rates else None)}"


def two(value: float | None) -> str:
    """Two decimals."""
    return "none" if value is None else f"{value:.2f}"
