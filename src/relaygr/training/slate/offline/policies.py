"""Policies that off-policy estimates evaluate, and what they and a model say behind logged prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from relaygr.config.limits import Range
from relaygr.core.errors import ConfigError
from relaygr.core.excerpt import excerpt
from relaygr.listwise.arrays import Bool, Float64, Int32, Int64
from relaygr.listwise.generators.relevance import scale_of
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head
from relaygr.listwise.scene import Scene
from relaygr.listwise.search import StepSearch
from relaygr.training.slate.offline.cascade import ModelSteps, Steps
from relaygr.training.slate.offline.explored import Explored, rewards

TEMPERATURE, STRENGTH = Range(0, 1e6, open_low=True), Range(0, 1e6)


class SlatePolicy(Protocol):
    """What picks lists at random, position by position.

    `log_probabilities` are those of all candidates behind each prefix of a list, picks int32 [T] as columns
    of the scene -> float64 [T, C], -inf where a candidate may not follow.
    """

    @property
    def name(self) -> str: ...

    def log_probabilities(self, scene: Scene, picks: Int32) -> Float64: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Plackett-Luce on scores that do not change with the list: softmax(score / temperature) of what is left.

    Attributes:
        of: `unit` or `raw`, values of the value function as in the generator `plackett_luce`; else the name
            of a head, whose output is the score.
    """

    temperature: float
    of: str = "unit"

    def __post_init__(self) -> None:
        TEMPERATURE.check("softmax.temperature", self.temperature)

    @property
    def name(self) -> str:
        return f"softmax {self.temperature:g}"

    def check(self, heads: Sequence[Head]) -> None:
        """Raise ConfigError where the scores are of none of these heads."""
        names = ("unit", "raw", *(head.name for head in heads))
        if self.of not in names:
            raise ConfigError("softmax.of", f"{excerpt(repr(self.of))} is none of {', '.join(names)}")

    def log_probabilities(self, scene: Scene, picks: Int32) -> Float64:
        return log_softmax(self._scores(scene, picks) / self.temperature, followers(scene, picks))

    def _scores(self, scene: Scene, picks: Int32) -> Float64:
        """[C], or [T, C] where soft rules price what stands behind a prefix."""
        if self.of == "unit" or self.of == "raw":
            value = scene.value - prices_of(scene, picks) if scene.walk.priced else scene.value
            return scale_of(scene, "unit" if self.of == "unit" else "raw")(value)
        self.check(scene.pool.heads)
        names = [head.name for head in scene.pool.heads]
        return scene.pool.outputs[:, names.index(self.of)].astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tilted:
    """A policy that leans towards what a step model prefers: pi(i | S) ~ base(i | S) * exp(strength * d_i).

    d_i is what the model says of i behind S, V_i + (1 - e_i) R with the mean pointwise value of the top L for
    every free position in R, less the pointwise value of i. With the strength 0 it is the base; the larger
    it is, the less the logs of the base say about it.
    """

    base: SlatePolicy
    model: ListModel
    strength: float

    def __post_init__(self) -> None:
        STRENGTH.check("tilted.strength", self.strength)

    @property
    def name(self) -> str:
        return f"{self.base.name} tilted {self.strength:g}"

    def log_probabilities(self, scene: Scene, picks: Int32) -> Float64:
        base = self.base.log_probabilities(scene, picks)
        value, stay = behind(self.model, scene, picks)
        credit = float(scene.value[: scene.length].mean())
        left = scene.length - 1 - np.arange(len(picks))
        gain = value + stay * (credit * left)[:, None] - scene.value
        return log_softmax(np.where(np.isneginf(base), 0.0, base) + self.strength * gain, ~np.isneginf(base))


def followers(scene: Scene, picks: Int32) -> Bool:
    """Which candidates may follow each prefix of a list int32 [T], so that it can be completed. [T, C]"""
    return scene.once(("followers", picks.tobytes()), lambda: _followers(scene, picks))


def _followers(scene: Scene, picks: Int32) -> Bool:
    marks, walk = scene.walk.start(), scene.walk
    found = np.empty((len(picks), len(scene)), dtype=bool)
    for t, item in enumerate(picks.tolist()):
        found[t] = walk.feasible(marks, t)[0]
        marks = walk.step(marks, t, _ROOT, np.array([item]))
    return found


def prices_of(scene: Scene, picks: Int32) -> Float64:
    """What soft rules take from every candidate behind each prefix of a list int32 [T]. [T, C]"""
    marks, walk = scene.walk.start(), scene.walk
    found = np.empty((len(picks), len(scene)))
    for t, item in enumerate(picks.tolist()):
        found[t] = walk.price(marks, t)[0]
        marks = walk.step(marks, t, _ROOT, np.array([item]))
    return found


def columns_of(scene: Scene, picks: Int32) -> Int32:
    """Columns of a scene for indices into its pool as the caller gave it; -1 for what the scene lacks."""
    place = np.full(max(int(scene.columns.max()), int(picks.max(initial=0))) + 1, -1, dtype=np.int32)
    place[scene.columns] = np.arange(len(scene), dtype=np.int32)
    found: Int32 = place[picks]
    return found


def behind(model: ListModel, scene: Scene, picks: Int32) -> tuple[Float64, Float64]:
    """V and 1 - e of every candidate behind each prefix of a list int32 [T]; 0 where barred. [T, C] each"""
    return scene.once(("behind", model, picks.tobytes()), lambda: _behind(model, scene, picks))


def _behind(model: ListModel, scene: Scene, picks: Int32) -> tuple[Float64, Float64]:
    search = StepSearch.of(model, scene)
    beams = search.start()
    T, C = len(picks), len(scene)
    value, stay = np.zeros((T, C)), np.zeros((T, C))
    for t, item in enumerate(picks.tolist()):
        scored = search.score(beams, t)
        reached = float(beams.survival[0])
        open_now = np.isfinite(scored.gain[0])
        value[t, open_now] = (scored.gain[0, open_now] - beams.utility[0]) / reached
        stay[t, open_now] = scored.survival[0, open_now] / reached
        beams = search.step(beams, t, scored, _ROOT, np.array([item]))
    return value, stay


def steps_of(explored: Explored, scenes: list[Scene], policy: SlatePolicy, model: ListModel) -> Steps:
    """A policy on logged lists, with a model for the doubly robust form.

    Args:
        scenes: of `explored`, which hold all picks; they keep what was computed for another policy.
    """
    logs = explored.logs
    N, L = explored.picks.shape
    target = np.zeros((N, L))
    arrays = {name: np.zeros((N, L)) for name in ModelSteps.__dataclass_fields__}
    for n, scene in enumerate(scenes):
        T = int(logs.consumed[n])
        if not T:
            continue
        picks = columns_of(scene, explored.picks[n, :T])
        said = policy.log_probabilities(scene, picks)
        share = np.exp(said)
        at = np.arange(T)
        value, stay = behind(model, scene, picks)
        target[n, :T] = said[at, picks]
        arrays["value"][n, :T], arrays["stay"][n, :T] = value[at, picks], stay[at, picks]
        arrays["mean_value"][n, :T] = (share * value).sum(1)
        arrays["mean_stay"][n, :T] = (share * stay).sum(1)
        assert scene.fallback is not None
        plain = model.of(scene, scene.fallback)
        arrays["rest_value"][n, : scene.length] = plain.value[0]
        arrays["rest_stay"][n, : scene.length] = 1.0 - plain.hazard[0]
    return Steps(
        logs.users,
        logs.consumed,
        rewards(model.value, logs),
        logs.log_propensity,
        target,
        ModelSteps(**arrays),
    )


def matching(explored: Explored, lists: Int32) -> Int64:
    """How many of the first picks a policy's lists share with the logged ones; int32 [N, L] -> [N].

    Args:
        lists: columns of the pools, -1 behind the end of a list.
    """
    L = min(lists.shape[1], explored.picks.shape[1])
    same = lists[:, :L] == explored.picks[:, :L]
    found: Int64 = np.minimum.accumulate(same, axis=1).sum(axis=1).astype(np.int64)
    return found


def log_softmax(logits: Float64, mask: Bool) -> Float64:
    """Over the last axis of what the mask leaves; -inf elsewhere. [T, C]"""
    kept = np.where(mask, logits, -np.inf)
    top = kept.max(axis=1, keepdims=True)
    found: Float64 = kept - (top + np.log(np.exp(kept - top).sum(axis=1, keepdims=True)))
    return found


_ROOT: Int64 = np.zeros(1, dtype=np.int64)
