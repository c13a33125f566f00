"""Why a list is worth what it is: parts of logits, values and utility that sum to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relaygr.listwise.arrays import Int32
from relaygr.listwise.lists import ListModel, ListValues
from relaygr.listwise.masks import RuleEffect
from relaygr.listwise.pool import HeadKind
from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True)
class HeadParts:
    """One head of one pick.

    Attributes:
        base: output of the ranker: a logit, or a positive value.
        scale, bias: a_k and c_k.
        terms: what each group of features adds, in the order of the model's groups.
        conditional: scale * base + bias + sum of terms, or base * exp(bias + sum of terms).
    """

    kind: HeadKind
    base: float
    scale: float
    bias: float
    terms: Mapping[str, float]
    conditional: float


@dataclass(frozen=True, slots=True)
class ExitParts:
    """The exit after one pick; logit = bias + sum of terms + heads. All zero if users do not leave."""

    bias: float
    terms: Mapping[str, float]
    heads: float
    logit: float
    probability: float


@dataclass(frozen=True, slots=True)
class PickParts:
    """One pick.

    Attributes:
        item: its id.
        pointwise: its value without context.
        heads: of the ranker, by name.
        value_terms: of the value function; V_t = their sum + `clipping` - sum of prices.
        clipping: what the value function's clip adds.
        effects: prices of soft rules.
        value: V_t.
        survival: s_t.
        contribution: s_t * V_t; U is their sum over the list.
        exit: after this pick; s_{t+1} = s_t * (1 - its probability).
    """

    item: int
    pointwise: float
    heads: Mapping[str, HeadParts]
    value_terms: tuple[float, ...]
    clipping: float
    effects: tuple[RuleEffect, ...]
    value: float
    survival: float
    contribution: float
    exit: ExitParts


@dataclass(frozen=True, slots=True)
class Explanation:
    """A whole list.

    Attributes:
        picks: first position first.
        utility: U.
        unpriced: U of the same list without the prices of soft rules.
        priced_by: what each soft rule takes from U.
    """

    picks: tuple[PickParts, ...]
    utility: float
    unpriced: float
    priced_by: Mapping[str, float]


def explain(model: ListModel, scene: Scene, picks: Int32, values: ListValues) -> Explanation:
    """The parts of one list int32 [L], from its values (G = 1)."""
    step, worth = model.step, model.value
    natural = step.natural(values.conditional)
    value_terms = worth.terms(natural)[:, 0]  # [terms, L]
    totals = value_terms.sum(0)
    clipping = worth.clip(totals) - totals
    effects = _effects(scene, picks)
    parts = []
    for t, pick in enumerate(picks.tolist()):
        parts.append(
            PickParts(
                item=int(scene.pool.ids[pick]),
                pointwise=float(scene.value[pick]),
                heads=_heads(model, values, t),
                value_terms=tuple(value_terms[:, t].tolist()),
                clipping=float(clipping[t]),
                effects=effects[t],
                value=float(values.value[0, t]),
                survival=float(values.survival[0, t]),
                contribution=float(values.survival[0, t] * values.value[0, t]),
                exit=_exit(model, values, t),
            )
        )
    utility = float(values.utility[0])
    priced_by: dict[str, float] = {}
    for t, each in enumerate(effects):
        for effect in each:
            taken = effect.price * float(values.survival[0, t])
            priced_by[effect.rule] = priced_by.get(effect.rule, 0.0) + taken
    return Explanation(tuple(parts), utility, utility + sum(priced_by.values()), priced_by)


def _heads(model: ListModel, values: ListValues, t: int) -> dict[str, HeadParts]:
    step, found = model.step, {}
    for k, head in enumerate(step.heads):
        found[head.name] = HeadParts(
            head.kind,
            float(values.base[k, 0, t]),
            float(step.scale[k]),
            float(step.bias[k]),
            {net.name: float(values.terms[j, k, 0, t]) for j, net in enumerate(step.nets)},
            float(values.conditional[k, 0, t]),
        )
    return found


def _exit(model: ListModel, values: ListValues, t: int) -> ExitParts:
    if not model.step.config.exit:
        return ExitParts(0.0, {net.name: 0.0 for net in model.step.nets}, 0.0, -np.inf, 0.0)
    terms = {net.name: float(values.terms[j, -1, 0, t]) for j, net in enumerate(model.step.nets)}
    bias, heads = float(values.exit_logit[t]), float(values.exit_heads[0, t])
    return ExitParts(bias, terms, heads, bias + sum(terms.values()) + heads, float(values.hazard[0, t]))


def _effects(scene: Scene, picks: Int32) -> list[tuple[RuleEffect, ...]]:
    walk = scene.walk
    if not walk.priced:
        return [()] * len(picks)
    marks, root, found = walk.start(), np.zeros(1, dtype=np.int64), []
    for t, pick in enumerate(picks.tolist()):
        found.append(walk.effects(marks, t, 0, pick))
        if t + 1 < len(picks):
            marks = walk.step(marks, t, root, np.array([pick], dtype=np.int64))
    return found
