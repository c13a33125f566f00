"""The trust region: lists near the pointwise order, where models have seen data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Int32, Int64
from relaygr.listwise.scene import Scene

DEFAULT_TOP = 30


@dataclass(frozen=True, slots=True)
class Region:
    """What lists may be made of.

    Attributes:
        scene: the candidates inside.
        columns: int64 [m], where they are in the scene it was made from.
        near, at_least: that many picks must be among its first `near` columns.
    """

    scene: Scene
    columns: Int64
    near: int
    at_least: int

    def holds(self, picks: Int32) -> bool:
        """Whether a list (of columns of `scene`) is inside."""
        return int((picks < self.near).sum()) >= self.at_least


@dataclass(frozen=True, slots=True)
class Trust:
    """Picks are from the top m by pointwise rank, at least half of them from the top 2 L.

    Where rules force the fallback to leave that, its own picks are inside as well, and as many picks of the
    top 2 L as it has are enough. There is therefore always a list inside.
    """

    top: int = DEFAULT_TOP

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ConfigError("trust.top", f"{self.top} is below 1")

    def region(self, scene: Scene) -> Region:
        """The region of a scene that has its fallback."""
        assert scene.fallback is not None
        columns = scene.top(self.top)
        # Ascending columns begin with the top m, so that the top 2 L are the first of the region as well.
        near = int(np.searchsorted(columns, 2 * scene.ask.length))
        half = -(-scene.length // 2)
        at_least = min(half, int((scene.fallback < 2 * scene.ask.length).sum()))
        if near == len(columns):
            return Region(scene.narrow(columns), columns, near, 0)
        favoured = np.arange(len(columns)) < near
        return Region(scene.narrow(columns, favoured, at_least), columns, near, at_least)

    @staticmethod
    def everything(scene: Scene) -> Region:
        """No restriction: for requests that ask for it."""
        return Region(scene, np.arange(len(scene), dtype=np.int64), len(scene), 0)
