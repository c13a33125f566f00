"""The simulator's side of a relay benchmark: the same searches, in processes of their own, one a core."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from relaygr.sim.experiments import Experiment, experiment
from relaygr.sim.lab import Lab
from relaygr.sim.tally import Result
from relaygr.sim.traffic import Regime, Traffic
from relaygr.sim.world import World


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """E1 and E2 to search for."""

    world: World
    traffic: Traffic
    seeds: tuple[int, ...]
    regime: Regime
    rank_taus: float
    candidates: int


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load to simulate."""

    world: World
    traffic: Traffic
    variant: str


def search_all(questions: Sequence[Question], workers: int) -> list[Experiment]:
    """Answers in order; so many at once."""
    with _pool(workers) as pool:
        return list(pool.map(_search, questions))


def serve_all(loads: Sequence[Load], workers: int) -> list[Result]:
    """Results in order; so many at once."""
    with _pool(workers) as pool:
        return list(pool.map(_serve, loads))


def _search(question: Question) -> Experiment:
    lab = Lab(question.world, question.traffic, question.seeds)
    return experiment(lab, question.regime, question.rank_taus, question.candidates)


def _serve(load: Load) -> Result:
    traffic = load.traffic
    return Lab(load.world, traffic).serve(load.variant, traffic.rate, traffic.length, traffic.seed)


def _pool(workers: int) -> ProcessPoolExecutor:
    # Fresh processes: a copy of this one would have threads of torch that do not run.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
