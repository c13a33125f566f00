"""All list methods on the same requests of one world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from relaygr.core.clock import ManualClock
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.choose import Choice
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.lists import ListModel
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.result import Stage
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import StepConfig
from relaygr.training.slate.fit import Solver, StepTraining, train_ensemble, train_step
from relaygr.training.slate.gain_rows import DEFAULT, POINTWISE, GainOptions, Key, Measured, Observe, ignore
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import fitting_config, world_config
from relaygr.training.slate.truth import oracle_beam, watched
from relaygr.training.slate.world import VALUE, Requests, World

FITTED = "over-fitted"
_FITTING_EPOCHS = 4  # times those of Adam's default: this variant is meant to over-fit
_WINDOW = 4  # of windowed re-rankers: the last 3 picks, as in the world
_RERANKERS: tuple[Generator, ...] = (
    *(Mmr(trade=trade) for trade in (0.4, 0.5, 0.6, 0.7)),
    *(Mmr(trade=trade, window=_WINDOW, positive=True) for trade in (0.4, 0.5, 0.6, 0.7)),
    *(Dpp(strength=strength) for strength in (1.0, 2.0)),
    *(Dpp(strength=strength, window=_WINDOW) for strength in (0.5, 1.0, 2.0)),
    *(Ssd(strength=strength, window=_WINDOW) for strength in (1.0, 2.0, 3.0, 4.0, 6.0)),
)
_LEARNED = 1_000_003  # added to a seed: the requests that models are trained on
_NEAR = 20  # candidates that searches of the over-fitted model look at, unless all
_Stages = dict[Stage, Sequence[Generator]]
_WIDTHS = (1, 4, 8)  # of the table of inflation


def measure(seed: int, options: GainOptions, observe: Observe = ignore) -> Measured:
    """All methods in the world of one seed."""
    world = World(msgspec.structs.replace(options.world, seed=seed))
    bench = _Bench.of(world.requests(options.requests, seed), seed)
    bench.add((POINTWISE, None), bench.requests.pointwise())
    if options.rerankers:
        for generator in _RERANKERS:
            observe(f"seed {seed}: {generator.name}")
            bench.add((generator.name, None), proposed(generator, bench.scenes))
    if options.oracle:
        observe(f"seed {seed}: oracle")
        for name, width in (("oracle greedy", 1), ("oracle beam8", 8)):
            bench.add((name, None), oracle_beam(bench.requests, width))
    if options.lists:
        logs = explored_logs(world.requests(max(options.lists), seed + _LEARNED), seed).logs
        for number in options.lists:
            observe(f"seed {seed}: training on {number:,} lists")
            _log_rows(bench, logs.select(slice(0, number)), options, observe)
    return bench.found


@dataclass(frozen=True, slots=True)
class _Bench:
    """The requests of a seed, as generators see them, and what was found so far."""

    requests: Requests
    scenes: list[Scene]
    found: Measured

    @classmethod
    def of(cls, requests: Requests, seed: int) -> _Bench:
        plain = Slates(VALUE, mode=Mode.OFF)
        scenes = [plain.scene(ask(requests, n), requests.pool(n)) for n in range(len(requests))]
        return cls(requests, scenes, Measured(seed, len(requests)))

    def add(self, key: Key, lists: Int32, predicted: Float64 | None = None) -> None:
        self.found.true[key] = watched(self.requests, lists).utility
        if predicted is not None:
            self.found.predicted[key] = predicted

    def beam(self, key: Key, beam: Beam, model: ListModel) -> None:
        self.add(key, *searched(beam, model, self.scenes))

    def serve(self, key: Key, slates: Slates, unrestricted: bool = False) -> None:
        """What the serving loop returns, and the mean of its evaluator."""
        results = [
            slates.serve(ask(self.requests, n, unrestricted), self.requests.pool(n))
            for n in range(len(self.requests))
        ]
        lists = np.stack([one.picks for one in results])
        self.add(key, lists, np.array([one.score for one in results], dtype=np.float64))

    def cell(
        self, fitted: bool, lists: int, model: ListModel, width: int, top: int | None, probed: int
    ) -> None:
        """One cell of the table of inflation."""
        some, requests = self.scenes[:probed], self.requests.select(slice(0, probed))
        picks, predicted = searched(Beam(model, width, top), model, some)
        true = float(watched(requests, picks).utility.sum())
        base = float(self.found.true[POINTWISE, None][:probed].sum())
        candidates = top or self.requests.items.shape[1]
        self.found.cells[fitted, lists, width, candidates] = (base, true, float(predicted.sum()))


def _log_rows(bench: _Bench, logs: LoggedLists, options: GainOptions, observe: Observe) -> None:
    """All that hangs on the models of one log."""
    number, seed = len(logs), bench.found.seed
    model = ListModel(train_step(world_config(), logs, options.training).model, VALUE)
    observe(f"seed {seed}: lists of the model of {number:,}")
    for beam in (Beam(model, 1), Beam(model)):
        bench.beam((beam.name, number), beam, model)
    if options.served:
        bench.serve((DEFAULT, number), Slates(VALUE, model))
    if not options.free:
        return
    observe(f"seed {seed}: the model that learns {number:,} lists by heart")
    fitted = ListModel(train_step(_fitting(options), logs, _long(options, number)).model, VALUE)
    bench.beam(("beam8 of all", number), Beam(model, 8, None), model)
    for beam in (Beam(fitted, 1, _NEAR), Beam(fitted, 4, _NEAR), Beam(fitted, 8, None, name="beam8 of all")):
        bench.beam((f"{FITTED} {beam.name}", number), beam, fitted)
    if number > min(options.lists):
        return
    if options.probed:
        observe(f"seed {seed}: inflation")
        for each in (model, fitted):
            for width in _WIDTHS:
                for top in (_NEAR, None):
                    bench.cell(each is fitted, number, each, width, top, options.probed)
    if options.members:
        observe(f"seed {seed}: choice by an ensemble")
        _choice_rows(bench, logs, model, fitted, options)


def _choice_rows(
    bench: _Bench, logs: LoggedLists, model: ListModel, fitted: ListModel, options: GainOptions
) -> None:
    """Choice among the lists of one model, which knows all users, by an ensemble of others of its kind.

    The default by the ensemble's lower bound. Lists of the over-fitted model over all candidates by itself,
    by mean and lower bound of the ensemble, and by that bound inside the trust region.
    """
    number = len(logs)
    usual = _ensemble(world_config(), logs, options.members, options.training)
    bench.serve((f"bound of {len(usual)}", number), Slates(VALUE, model, evaluator=Rescore(usual)))
    members = _ensemble(_fitting(options), logs, options.members, _long(options, number))
    greedy, mmr = Beam(fitted, 1, _NEAR), Mmr()
    wide: _Stages = {
        Stage.GREEDY: (greedy,),
        Stage.BEAM: (Beam(fitted, 8, None),),
        Stage.GENERATORS: (mmr,),
    }
    near: _Stages = {**wide, Stage.BEAM: (Beam(fitted, 4, _NEAR),)}
    mean, bound, alone, all_ = Choice(kappa=0.0), Choice(), Rescore([fitted]), Rescore(members)
    for name, generators, evaluator, choice, unrestricted in (
        ("own choice of all", wide, alone, mean, True),
        (f"mean of {len(members)} of all", wide, all_, mean, True),
        (f"bound of {len(members)} of all", wide, all_, bound, True),
        (f"bound of {len(members)}", near, all_, bound, False),
    ):
        slates = Slates(VALUE, fitted, generators=generators, evaluator=evaluator, choice=choice)
        bench.serve((f"{FITTED} {name}", number), slates, unrestricted)


def _ensemble(config: StepConfig, logs: LoggedLists, members: int, training: StepTraining) -> list[ListModel]:
    return [ListModel(one.model, VALUE) for one in train_ensemble(config, logs, members, training)]


def _fitting(options: GainOptions) -> StepConfig:
    return fitting_config(options.world)


def _long(options: GainOptions, lists: int) -> StepTraining:
    by_adam = StepTraining(solver=Solver.ADAM, ridge=0.0, seed=options.training.seed)
    return msgspec.structs.replace(by_adam, epochs=_FITTING_EPOCHS * by_adam.epochs_for(lists))


def ask(requests: Requests, n: int, unrestricted: bool = False) -> SlateAsk:
    """Request n of a world."""
    return SlateAsk(
        request_id=f"{requests.users[n]}", length=requests.world.config.length, unrestricted=unrestricted
    )


def proposed(generator: Generator, scenes: Sequence[Scene]) -> Int32:
    """A generator's first list for each scene, as columns of the caller's candidates. [N, L]"""
    free = Budget(ManualClock())
    made = [scene.columns[generator.propose(scene, free)[0].picks] for scene in scenes]
    return np.stack(made).astype(np.int32)


def searched(beam: Beam, model: ListModel, scenes: Sequence[Scene]) -> tuple[Int32, Float64]:
    """A beam's lists [N, L], as columns of the caller's candidates, and their U by its model [N]."""
    free = Budget(ManualClock())
    made, values = list[Int32](), list[float]()
    for scene in scenes:
        own = replace(scene, _cache={})  # the tables of many models for many requests would add up
        picks = beam.propose(own, free)[0].picks
        made.append(scene.columns[picks].astype(np.int32))
        values.append(float(model.utilities(own, picks[None])[0]))
    return np.stack(made), np.array(values)
