"""Evaluators: what a whole list is worth, by one model or by an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.lists import ListModel
from relaygr.listwise.scene import Scene


class Evaluator(Protocol):
    """A list model.

    `evaluate` values lists int32 [G, L] by each of its E members, float64 [E, G]. A list's values do not
    depend on the other lists. It raises SlateNanError if something is not finite.

    Attributes:
        version: named in responses and logs.
        light: whether calling it after each stage is affordable; otherwise lists are valued in one batch.
    """

    @property
    def version(self) -> str: ...

    @property
    def light(self) -> bool: ...

    def evaluate(self, scene: Scene, picks: Int32) -> Float64: ...


class Rescore:
    """The step model as evaluator, or an ensemble of step models: the default.

    Args:
        models: E of them.
    """

    light = True

    def __init__(self, models: Sequence[ListModel]) -> None:
        if not models:
            raise ConfigError("models", "at least one is needed")
        self._models = tuple(models)
        self.version = "rescore:" + "+".join(each.step.version[:8] for each in self._models)

    def evaluate(self, scene: Scene, picks: Int32) -> Float64:
        return np.stack([model.utilities(scene, picks) for model in self._models])
