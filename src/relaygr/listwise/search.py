"""The step model during a search: values and exits of every candidate behind every beam.

Nets run in float32, one product of the same shape a beam, so that a beam's numbers do not depend on how many
others there are; values, survivals and utilities are float64. Finished lists are valued again by `lists.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.listwise.arrays import Float32, Float64, Int64
from relaygr.listwise.context import State
from relaygr.listwise.errors import SlateNanError
from relaygr.listwise.lists import ListModel, first_survival
from relaygr.listwise.masks import Marks
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import hazard


@dataclass(frozen=True, slots=True)
class Beams:
    """B partial lists of one length.

    Attributes:
        marks: of the rules.
        context: of the step model.
        utility, survival: float64 [B], U and s_{t+1} so far.
    """

    marks: Marks
    context: State
    utility: Float64
    survival: Float64


@dataclass(frozen=True, slots=True)
class Scored:
    """What each candidate would be at the next position of each list; -inf where it is not allowed.

    Attributes:
        gain: [B, C], U with the candidate.
        survival: [B, C], probability of going on after it.
    """

    gain: Float64
    survival: Float64


class StepSearch:
    """One request's search space under a step model."""

    def __init__(self, model: ListModel, scene: Scene) -> None:
        self._model, self._scene = model, scene
        self._context = model.context(scene)
        outputs = scene.pool.outputs.T[:, None]
        self._outputs = np.ascontiguousarray(outputs, dtype=np.float64)  # [K, 1, C]
        self._biases = self._still()
        self._start = Beams(
            scene.walk.start(), self._context.start(), np.zeros(1), np.full(1, first_survival(scene))
        )
        self.calls = 0  # of the step model
        self.pairs = 0  # of lists and candidates that it valued

    def _still(self) -> Float32:
        """What the nets' hidden layers get at each position from all that is the same for all candidates.

        float32 [length, H, 1]
        """
        step = self._model.step
        rows = self._context.still.T.astype(np.float32)
        biases: Float32 = rows @ step.stacked_still.T + step.stacked_bias
        return biases[:, :, None]

    @classmethod
    def of(cls, model: ListModel, scene: Scene) -> StepSearch:
        """The one of this model and scene; generators share its tables."""
        return scene.once((cls, model), lambda: cls(model, scene))

    def start(self) -> Beams:
        """One empty list."""
        return self._start

    def score(self, beams: Beams, t: int) -> Scored:
        """Value every candidate at position t of every list.

        Raises:
            SlateNanError: a candidate's value or exit is not finite.
        """
        step, walk = self._model.step, self._scene.walk
        allowed = walk.allowed(beams.marks, t)
        corrections = self._corrections(beams.context, t)  # [K + 1, B, C]
        K = len(step.heads)
        conditional = step.conditional(self._outputs, corrections[:K])
        value = self._model.value(step.natural(conditional))
        if walk.priced:
            value = value - walk.price(beams.marks, t)
        survival = beams.survival[:, None]
        gain = beams.utility[:, None] + survival * value
        if step.config.exit:
            logits = corrections[K] + step.exit_bias_at(t)
            term = step.exit_term(np.ascontiguousarray(conditional.transpose(1, 0, 2)))
            if term is not None:
                logits += term
            onward = survival * (1.0 - hazard(logits))
        else:
            onward = np.broadcast_to(survival, gain.shape)
        if not np.isfinite(gain + onward).all():
            raise SlateNanError("step model")
        self.calls += 1
        self.pairs += gain.size
        return Scored(np.where(allowed, gain, -np.inf), onward)

    def _corrections(self, context: State, t: int) -> Float64:
        step = self._model.step
        moving = step.stacked_moving
        rows = np.empty((len(context.watch), moving.shape[1], len(self._scene)), dtype=np.float32)
        self._context.rows(context, t, rows)
        units: Float32 = moving @ rows  # [B, H, C]
        units += self._biases[t]
        np.tanh(units, out=units)
        out = step.stacked_out @ units  # [B, K + 1, C]
        return out.transpose(1, 0, 2).astype(np.float64, order="C")

    def step(self, beams: Beams, t: int, scored: Scored, parents: Int64, items: Int64) -> Beams:
        """Lists `parents` [B'], each with `items` [B'] at position t."""
        return Beams(
            self._scene.walk.step(beams.marks, t, parents, items),
            self._context.step(beams.context, t, parents, items),
            scored.gain[parents, items],
            scored.survival[parents, items],
        )
