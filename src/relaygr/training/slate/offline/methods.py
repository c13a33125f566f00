"""Lists by each method for the same requests, with what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.pointwise import Pointwise
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Pool
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.result import SlateResult
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import StepModel
from relaygr.training.slate.offline.report import Cost

BASELINE, DEFAULT = "pointwise", "default"
METHODS = (BASELINE, "mmr", "dpp", "ssd", "greedy", "beam4", DEFAULT)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Lists of one method for N requests.

    Attributes:
        picks: int32 [N, L], columns of the pools; -1 behind the end of a list.
        predicted: float64 [N], U of each by the step model.
        results: of the serving loop, for `default`.
    """

    method: str
    picks: Int32
    predicted: Float64
    cost: Cost
    results: tuple[SlateResult, ...] = ()


class CountedStep(StepModel):
    """The same step model, which counts how often it is asked; every call values many candidates at once."""

    calls = 0

    def conditional(self, outputs: Float64, corrections: Float64) -> Float64:
        self.calls += 1
        return super().conditional(outputs, corrections)


def make_lists(
    model: ListModel,
    pools: Sequence[Pool],
    scenes: Sequence[Scene],
    methods: Sequence[str] = METHODS,
) -> list[Made]:
    """Lists of as many positions as each scene asks for.

    Args:
        scenes: of the pools, in the same order.

    Raises:
        ConfigError: a method is unknown.
    """
    counted = CountedStep(model.step.config, model.step.tensors)
    asked = ListModel(counted, model.value)
    made = []
    for method in methods:
        counted.calls = 0
        began = time.process_time()
        results: tuple[SlateResult, ...] = ()
        if method == DEFAULT:
            slates = Slates(model.value, asked)
            results = tuple(
                slates.serve(_ask(scene), pool) for scene, pool in zip(scenes, pools, strict=True)
            )
            rows = [one.picks for one in results]
            number = float(np.mean([len(one.pool) for one in results]))
        else:
            generator, free = _generator(method, asked), Budget(ManualClock())
            rows = [
                scene.columns[generator.propose(scene, free)[0].picks].astype(np.int32) for scene in scenes
            ]
            number = 1.0
        spent = 1e3 * (time.process_time() - began)
        cost = Cost(
            method=method, ms=spent / len(pools), model_calls=counted.calls / len(pools), lists=number
        )
        made.append(Made(method, _padded(rows), _predicted(model, scenes, rows), cost, results))
    return made


def _ask(scene: Scene) -> SlateAsk:
    return SlateAsk(request_id=scene.ask.request_id, length=scene.ask.length, rules=scene.ask.rules)


def _generator(method: str, model: ListModel) -> Generator:
    match method:
        case "pointwise":
            return Pointwise()
        case "mmr":
            return Mmr()
        case "dpp":
            return Dpp()
        case "ssd":
            return Ssd()
        case "greedy":
            return Beam(model, 1)
        case "beam4":
            return Beam(model, 4)
    raise ConfigError("methods", f"{method!r} is none of {', '.join(METHODS)}")


def _padded(rows: Sequence[Int32]) -> Int32:
    found = np.full((len(rows), max(len(row) for row in rows)), -1, dtype=np.int32)
    for n, row in enumerate(rows):
        found[n, : len(row)] = row
    return found


def _predicted(model: ListModel, scenes: Sequence[Scene], rows: Sequence[Int32]) -> Float64:
    values = [
        float(model.utilities(scene, np.argsort(scene.columns)[row].astype(np.int32)[None])[0])
        for scene, row in zip(scenes, rows, strict=True)
    ]
    return np.array(values)
