"""What generators balance against similarity: values, on a scale of their own if wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from relaygr.listwise.arrays import Float64
from relaygr.listwise.scene import Scene

# `unit` maps the values of the request to 0..1, so that a weight means the same for every value function.
Relevance: TypeAlias = Literal["unit", "raw"]


@dataclass(frozen=True, slots=True)
class Scale:
    """(value - low) / span."""

    low: float
    span: float

    def __call__(self, value: Float64) -> Float64:
        """Relevance of values [...]; less than 0 where the price of a soft rule takes it there."""
        return (value - self.low) / self.span


def scale_of(scene: Scene, relevance: Relevance) -> Scale:
    """The scale of a request; with `unit` and all values equal they are all 0."""
    if relevance == "raw":
        return Scale(0.0, 1.0)
    high, low = float(scene.value[0]), float(scene.value[-1])
    return Scale(low, high - low if high > low else 1.0)
