"""What list methods gain over the pointwise order in a world with known truth.

Re-rankers get the best of a few parameters, chosen on the very requests they are measured on, so that their
rows flatter them; step models are trained on other requests than those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.lists import ListModel
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.training.bootstrap import interval, resample
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import fitting_config, world_config
from relaygr.training.slate.truth import oracle_beam, watched
from relaygr.training.slate.world import VALUE, Requests, World, WorldConfig

POINTWISE = "pointwise"
_FITTING_EPOCHS = 4  # times those of the default: this variant is meant to over-fit
_TRADES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_STRENGTHS = {"dpp": (0.5, 1.0, 2.0, 4.0), "ssd": (0.25, 0.5, 1.0, 2.0)}
_LEARNED = 1_000_003  # added to a seed: the requests that models are trained on


class GainRow(msgspec.Struct, frozen=True, kw_only=True):
    """One method: mean true U over that of the pointwise lists, less 1, in per cent.

    Attributes:
        lists: logged lists that its model was trained on; None without a model.
        low, high: 95 % interval, of a bootstrap over the users of all seeds with the models as they are.
        by_seed: of each seed's world and model.
        inflation: what the model says of the chosen lists over what they are truly worth; None without one.
    """

    method: str
    lists: int | None
    gain: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    inflation: float | None = None


class GainsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order in which they were measured; `requests` a seed."""

    rows: tuple[GainRow, ...]
    seeds: tuple[int, ...]
    requests: int
    world: WorldConfig
    seconds: float

    def row(self, method: str, lists: int | None = None) -> GainRow:
        """The row of a method. Raises KeyError."""
        for one in self.rows:
            if (one.method, one.lists) == (method, lists):
                return one
        raise KeyError((method, lists))


Key = tuple[str, int | None]
Observe = Callable[[str], None]


def ignore(what: str) -> None:
    """The `Observe` of those who do not ask."""


@dataclass(slots=True)
class Measured:
    """One seed: true U of every request's list by each method, and what its model predicted. [N] each"""

    seed: int
    users: int
    true: dict[Key, Float64] = field(default_factory=dict)
    predicted: dict[Key, Float64] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GainOptions:
    """What to measure.

    Attributes:
        requests: a seed; every user has one.
        lists: sizes of logs that step models are trained on.
        rerankers, oracle: MMR, DPP and SSD; greedy and a beam of 8 that know the truth.
        free: a beam of 8 over all candidates, and with it the model that learns items by heart.
        served: the serving loop; without, greedy and beam alone, which is quicker.
    """

    requests: int = 1000
    lists: tuple[int, ...] = (8000, 600)
    rerankers: bool = True
    oracle: bool = True
    free: bool = False
    served: bool = True
    world: WorldConfig = field(default_factory=WorldConfig)
    training: StepTraining = field(default_factory=StepTraining)

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ConfigError("requests", f"{self.requests} is below 1")
        if any(each < 1 for each in self.lists):
            raise ConfigError("lists", f"{list(self.lists)} must be numbers from 1 on")


def gains(
    seeds: Sequence[int],
    options: GainOptions | None = None,
    observe: Observe = ignore,
) -> GainsReport:
    """Measure all methods on fresh worlds, one a seed."""
    options = options or GainOptions()
    began = time.perf_counter()
    found = [measure(seed, options, observe) for seed in seeds]
    return summarise(found, options, time.perf_counter() - began)


def measure(seed: int, options: GainOptions, observe: Observe = ignore) -> Measured:
    """All methods in the world of one seed."""
    world = World(msgspec.structs.replace(options.world, seed=seed))
    requests = world.requests(options.requests, seed)
    found = Measured(seed, len(requests))

    def truth(lists: Int32) -> Float64:
        return watched(requests, lists).utility

    found.true[POINTWISE, None] = truth(requests.pointwise())
    plain = Slates(VALUE, mode=Mode.OFF)
    scenes = [plain.scene(ask(requests, n), requests.pool(n)) for n in range(len(requests))]
    if options.rerankers:
        for generator in rerankers():
            observe(f"seed {seed}: {generator.name}")
            found.true[generator.name, None] = truth(proposed(generator, scenes))
    if options.oracle:
        observe(f"seed {seed}: oracle")
        for name, width in (("oracle greedy", 1), ("oracle beam8", 8)):
            found.true[name, None] = truth(oracle_beam(requests, width))
    if options.lists:
        logs = explored_logs(world.requests(max(options.lists), seed + _LEARNED), seed).logs
        for number in options.lists:
            observe(f"seed {seed}: training on {number:,} lists")
            some = logs.select(slice(0, number))
            model = ListModel(train_step(world_config(), some, options.training).model, VALUE)
            observe(f"seed {seed}: lists of the model of {number:,}")
            _model_rows(found, number, model, requests, scenes, options)
            if options.free:
                epochs = _FITTING_EPOCHS * options.training.epochs_for(number)
                long = msgspec.structs.replace(options.training, epochs=epochs)
                fitted = ListModel(train_step(fitting_config(world.config), some, long).model, VALUE)
                for beam in (Beam(fitted, 1, 20, name="greedy"), Beam(fitted, 8, None, name="beam8 of all")):
                    _beam_row(found, (f"over-fitted {beam.name}", number), beam, fitted, requests, scenes)
    return found


def _model_rows(
    found: Measured,
    number: int,
    model: ListModel,
    requests: Requests,
    scenes: Sequence[Scene],
    options: GainOptions,
) -> None:
    for beam in (Beam(model, 1), Beam(model)):
        _beam_row(found, (beam.name, number), beam, model, requests, scenes)
    if options.free:
        _beam_row(found, ("beam8 of all", number), Beam(model, 8, None), model, requests, scenes)
    if options.served:
        slates = Slates(VALUE, model)
        results = [slates.serve(ask(requests, n), requests.pool(n)) for n in range(len(requests))]
        key = ("default", number)
        found.true[key] = watched(requests, np.stack([one.picks for one in results])).utility
        found.predicted[key] = np.array([one.utility for one in results], dtype=np.float64)


def _beam_row(
    found: Measured, key: Key, beam: Beam, model: ListModel, requests: Requests, scenes: Sequence[Scene]
) -> None:
    lists = proposed(beam, scenes)
    found.true[key] = watched(requests, lists).utility
    ranked = [np.argsort(scene.columns)[row] for scene, row in zip(scenes, lists, strict=True)]
    values = [float(model(scene, row[None]).utility[0]) for scene, row in zip(scenes, ranked, strict=True)]
    found.predicted[key] = np.array(values)


def ask(requests: Requests, n: int) -> SlateAsk:
    """Request n of a world."""
    return SlateAsk(request_id=f"{requests.users[n]}", length=requests.world.config.length)


def rerankers() -> list[Generator]:
    """MMR, DPP and SSD with every parameter that is tried."""
    made: list[Generator] = [Mmr(trade=trade) for trade in _TRADES]
    made += [Dpp(strength=strength) for strength in _STRENGTHS["dpp"]]
    return [*made, *(Ssd(strength=strength) for strength in _STRENGTHS["ssd"])]


def proposed(generator: Generator, scenes: Sequence[Scene]) -> Int32:
    """A generator's first list for each scene, as columns of the caller's candidates. [N, L]"""
    free = Budget(ManualClock())
    made = [scene.columns[generator.propose(scene, free)[0].picks] for scene in scenes]
    return np.stack(made).astype(np.int32)


def summarise(found: Sequence[Measured], options: GainOptions, seconds: float) -> GainsReport:
    """Rows over all seeds; of each family of re-rankers the best parameter alone."""
    keys = _best_of_families(found)
    users = np.arange(sum(one.users for one in found), dtype=np.int64)
    names = [(POINTWISE, None), *keys]
    values = np.stack([np.concatenate([one.true[key] for one in found]) for key in names], axis=1)
    drawn = resample(values, users, per_user=False, seed=0)
    rows = []
    for at, key in enumerate(keys, 1):
        draws = 100 * (drawn.draws[:, at] / drawn.draws[:, 0] - 1)
        low, high = interval(draws)
        by_seed = [_gain(one.true[key], one.true[POINTWISE, None]) for one in found]
        inflation = None
        if key in found[0].predicted:
            predicted = sum(float(one.predicted[key].sum()) for one in found)
            inflation = predicted / float(values[:, at].sum())
        gain = float(np.mean(by_seed))
        rows.append(
            GainRow(
                method=key[0],
                lists=key[1],
                gain=gain,
                low=low,
                high=high,
                by_seed=tuple(by_seed),
                inflation=inflation,
            )
        )
    seeds = tuple(one.seed for one in found)
    return GainsReport(
        rows=tuple(rows), seeds=seeds, requests=options.requests, world=options.world, seconds=seconds
    )


def _best_of_families(found: Sequence[Measured]) -> list[Key]:
    means: Mapping[Key, float] = {
        key: float(np.mean([_gain(one.true[key], one.true[POINTWISE, None]) for one in found]))
        for key in found[0].true
        if key[0] != POINTWISE
    }
    best: dict[str, Key] = {}
    for key, mean in means.items():
        family = f"{key[0].partition('(')[0]} {key[1]}"
        if family not in best or mean > means[best[family]]:
            best[family] = key
    return list(best.values())


def _gain(mine: Float64, pointwise: Float64) -> float:
    return 100 * (float(mine.mean()) / float(pointwise.mean()) - 1)
