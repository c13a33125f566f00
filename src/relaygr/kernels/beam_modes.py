"""Which of `split` and `joint` is faster where: a measured table over (W, P), kept for inspection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

CLEARLY = 0.92


@dataclass(frozen=True, slots=True)
class BeamShape:
    """What a table was measured for: heads of one layer, slots a beam owns, element type, threads."""

    heads: int
    kv_heads: int
    dim: int
    depth: int
    dtype: str
    threads: int


@dataclass(frozen=True, slots=True)
class ModeCell:
    """One measured point: milliseconds of one layer's step in either mode."""

    width: int
    prompt_tokens: int
    split_ms: float
    joint_ms: float

    @property
    def best(self) -> Literal["split", "joint"]:
        """`split` unless `joint` is clearly faster: bits must not change with the noise of a measurement."""
        return "joint" if self.joint_ms < CLEARLY * self.split_ms else "split"


@dataclass(frozen=True, slots=True)
class ModeTable:
    """Measured cells; a question is answered by the cell nearest in log W and log P.

    Raises: ValueError without cells.
    """

    shape: BeamShape
    cells: tuple[ModeCell, ...]

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError("cells: a table needs at least one")

    def nearest(self, width: int, prompt_tokens: int) -> ModeCell:
        """The deciding cell; of equally near ones the first measured."""
        return min(
            self.cells,
            key=lambda c: _log_distance(c.width, width) + _log_distance(c.prompt_tokens, prompt_tokens),
        )

    def decide(self, width: int, prompt_tokens: int) -> Literal["split", "joint"]:
        return self.nearest(width, prompt_tokens).best

    def crossover(self, width: int) -> int | None:
        """Prompt tokens from which on `split` won at the measured width nearest to `width`; None if never."""
        measured = min({c.width for c in self.cells}, key=lambda w: _log_distance(w, width))
        row = sorted((c for c in self.cells if c.width == measured), key=lambda c: c.prompt_tokens)
        found: int | None = None
        for cell in reversed(row):
            if cell.best != "split":
                break
            found = cell.prompt_tokens
        return found


def _log_distance(a: int, b: int) -> float:
    return abs(math.log(max(a, 1) / max(b, 1)))
