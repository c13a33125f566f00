"""The slow and obvious forms of what this room computes quickly: for tests only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from relaygr.listwise.features import Feature, Kind
from relaygr.listwise.masks import Walk
from relaygr.listwise.pool import MISSING, HeadKind
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import MAX_HAZARD, StepModel
from relaygr.listwise.value import ValueFunction


def context_row(model: StepModel, scene: Scene, picks: Sequence[int], item: int) -> list[float]:
    """The features of candidate `item` behind `picks`, recomputed from everything before it. [F]"""
    return [_feature(one, model, scene, picks, item) for one in model.features.features]


def _feature(one: Feature, model: StepModel, scene: Scene, picks: Sequence[int], item: int) -> float:
    pool, shown, t = scene.pool, scene.ask.shown, len(picks)
    before = 0 if shown is None else len(shown)
    match one.kind:
        case Kind.SIMILARITY:
            seen = [] if shown is None or shown.vectors is None else [*shown.vectors.astype(np.float64)]
            assert pool.vectors is not None
            seen += [pool.vectors[pick].astype(np.float64) for pick in picks]
            mine = pool.vectors[item].astype(np.float64)
            cosines = [
                float(mine @ other) / math.sqrt(float(mine @ mine) * float(other @ other))
                for other in seen[-model.features.window :]
            ]
            if not cosines:
                return 0.0
            return max(cosines) if one.argument == "max" else sum(cosines) / len(cosines)
        case Kind.COUNT | Kind.RECENCY:
            values = [] if shown is None else shown.attributes[one.argument].tolist()
            values += [int(pool.attributes[one.argument][pick]) for pick in picks]
            mine_value = int(pool.attributes[one.argument][item])
            if mine_value == MISSING or mine_value not in values:
                return 0.0
            if one.kind is Kind.COUNT:
                return float(values.count(mine_value))
            return 1.0 / (values[::-1].index(mine_value) + 1)
        case Kind.POSITION:
            return t / scene.ask.length
        case Kind.WATCH:
            total = 0.0 if shown is None or shown.watch is None else float(shown.watch.sum())
            at = [head.name for head in model.heads].index(model.config.watch_head or "")
            for pick in picks:
                output = float(pool.outputs[pick, at])
                total += output if model.heads[at].kind is HeadKind.REGRESSION else _sigmoid(output)
            return math.log1p(total)
        case Kind.SESSION:
            return math.log1p(scene.ask.consumed + before + t)
        case Kind.PAGE:
            return 0.0 if shown is None else float(shown.page)
        case Kind.SLOT:
            return float(bool(scene.ask.slots) and scene.ask.slots[t] == one.number)
        case Kind.VECTOR:
            assert pool.vectors is not None
            return float(pool.vectors[item, one.number])


def utility(model: StepModel, value: ValueFunction, scene: Scene, picks: Sequence[int]) -> float:
    """U of one list by its definition: one pick, one head, one group, one unit at a time."""
    total, survival = 0.0, 1.0 if scene.ask.shown is None else scene.ask.shown.survival
    marks, root = scene.walk.start(), np.zeros(1, dtype=np.int64)
    for t, item in enumerate(picks):
        context = context_row(model, scene, picks[:t], item)
        corrections = [0.0] * (len(model.heads) + 1)
        for group in model.config.groups:
            inputs = [context[model.features.names.index(name)] for name in group.features]
            for at in range(len(corrections)):
                corrections[at] += _net(model, f"groups.{group.name}.", inputs, at)
        conditional, probabilities = [], []
        for k, head in enumerate(model.heads):
            output = float(scene.pool.outputs[item, k])
            bias = float(model.tensors["heads.bias"][k]) + corrections[k]
            if head.kind is HeadKind.BINARY:
                logit = float(model.tensors["heads.scale"][k]) * output + bias
                conditional.append(logit)
                probabilities.append(_sigmoid(logit))
            else:
                conditional.append(math.log1p(output * math.exp(bias)))
                probabilities.append(output * math.exp(bias))
        worth = float(value(np.array(probabilities)[:, None])[0])
        if scene.walk.priced:
            worth -= float(scene.walk.price(marks, t)[0, item])
        total += survival * worth
        if model.config.exit:
            biases = model.tensors["exit.bias"]
            logit = float(biases[min(t, len(biases) - 1)]) + corrections[-1]
            if model.config.exit_hidden:
                logit += _net(model, "exit.", conditional, 0)
            survival *= 1.0 - min(_sigmoid(logit), MAX_HAZARD)
        marks = scene.walk.step(marks, t, root, np.array([item]))
    return total


def _net(model: StepModel, prefix: str, inputs: Sequence[float], output: int) -> float:
    weight, bias = model.tensors[f"{prefix}hidden.weight"], model.tensors[f"{prefix}hidden.bias"]
    units = (
        math.tanh(sum(float(w) * x for w, x in zip(row, inputs, strict=True)) + float(b))
        for row, b in zip(weight, bias, strict=True)
    )
    return sum(
        float(w) * unit for w, unit in zip(model.tensors[f"{prefix}out.weight"][output], units, strict=True)
    )


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1.0 + math.exp(logit))


def all_lists(walk: Walk, candidates: int) -> Iterator[tuple[int, ...]]:
    """Every list that a walk allows, in lexicographic order."""
    root = np.zeros(1, dtype=np.int64)
    for picks in itertools.permutations(range(candidates), walk.length):
        marks, sound = walk.start(), True
        for t, item in enumerate(picks):
            if not walk.allowed(marks, t)[0, item]:
                sound = False
                break
            marks = walk.step(marks, t, root, np.array([item]))
        if sound:
            yield picks


def best_list(scene: Scene, score: Callable[[tuple[int, ...]], float]) -> tuple[tuple[int, ...], float]:
    """The list of the highest score among all, the first of equal ones."""
    return max(((picks, score(picks)) for picks in all_lists(scene.walk, len(scene))), key=lambda one: one[1])
