"""Which of `split` and `joint` is faster where: a measured table over (W, P), kept for inspection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# `joint` has to take less than this of split's time: bits must not change with the noise of a measurement.
CLEARLY = 0.96


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


@dataclass(frozen=True, slots=True)
class ModeTable:
    """Measured cells, and the prompt length from which on `split` is taken at each measured width.

    `joint` saves the merge, `split` passes over the scores less often: one wins on short prompts, the other
    on long ones. So each width gets one cross-over, where the cells it contradicts lose least by it; a
    single cell that a neighbouring process disturbed decides nothing.

    Raises: ValueError without cells.
    """

    shape: BeamShape
    cells: tuple[ModeCell, ...]

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError("cells: a table needs at least one")

    @property
    def widths(self) -> tuple[int, ...]:
        """The measured widths, ascending."""
        return tuple(sorted({cell.width for cell in self.cells}))

    def crossover(self, width: int) -> int | None:
        """The measured P from which on `split` is taken, at the nearest measured width; None if never."""
        row = self._row(width)
        index = _cut(row)
        return row[index].prompt_tokens if index < len(row) else None

    def decide(self, width: int, prompt_tokens: int) -> Literal["split", "joint"]:
        """The mode for W beams on P tokens; between two measured P, the nearer one by ratio counts."""
        row = self._row(width)
        nearest = min(range(len(row)), key=lambda i: _log_distance(row[i].prompt_tokens, prompt_tokens))
        return "split" if nearest >= _cut(row) else "joint"

    def _row(self, width: int) -> list[ModeCell]:
        measured = min(self.widths, key=lambda w: _log_distance(w, width))
        return sorted((c for c in self.cells if c.width == measured), key=lambda c: c.prompt_tokens)


def _cut(row: list[ModeCell]) -> int:
    """Cells before it are `joint`; where the sum of log losses is least, of equal ones the first."""
    gains = [math.log(CLEARLY * cell.split_ms / cell.joint_ms) for cell in row]  # of joint over split
    sums = [0.0]
    for gain in gains:
        sums.append(sums[-1] + gain)
    return max(range(len(sums)), key=lambda i: (sums[i], -i))


def _log_distance(a: int, b: int) -> float:
    return abs(math.log(max(a, 1) / max(b, 1)))
