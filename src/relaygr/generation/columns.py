"""Which columns of the head a round needs, and in which of them each code's logit stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relaygr.generation.normalise import Normalization

Int64s: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = slice | Tensor | None

# Under `valid` only codes that may follow are computed. Picking columns copies them, so that pays only where
# it leaves out most of a level.
_NARROW_SHARE = 4


class LevelTokens(Protocol):
    """How codes are tokens of the model."""

    def base(self, level: int) -> int | None:
        """b, if code c of `level` is token b + c for all c; None if it takes a table."""

    def table(self, level: int) -> Int64s:
        """The token of each code of `level`. [V_l]"""


@dataclass(frozen=True, slots=True, eq=False)
class HeadColumns:
    """Columns to compute.

    Attributes:
        columns: what the model is asked for; None for the whole vocabulary.
        width: how many there are.
        place: int64 [V_l], the column of each code; None if code c stands in column c.
    """

    columns: Columns
    width: int
    place: Int64s | None


class HeadPlan:
    """The columns of each level for one token map; made once a map, shared by its requests."""

    def __init__(self, tokens: LevelTokens, sizes: tuple[int, ...], vocab_size: int) -> None:
        self.sizes, self.vocab_size = sizes, vocab_size
        self._tables: list[Int64s] = []
        self._whole: list[HeadColumns] = []
        self._level: list[HeadColumns] = []
        for level, size in enumerate(sizes, start=1):
            table = tokens.table(level)
            base = tokens.base(level)
            self._tables.append(table)
            self._whole.append(HeadColumns(None, vocab_size, table))
            picked = torch.from_numpy(table) if base is None else slice(base, base + size)
            self._level.append(HeadColumns(picked, size, None))

    def tokens(self, level: int, codes: Int64s) -> Int64s:
        """The tokens to feed for `codes` of `level`. [n]"""
        return self._tables[level - 1][codes]

    def of(self, level: int, normalization: Normalization, codes: npt.NDArray[np.integer]) -> HeadColumns:
        """Columns of round `level`, in which only `codes` (repeats allowed) can be selected."""
        if normalization is Normalization.FULL:
            return self._whole[level - 1]
        if normalization is Normalization.VALID:
            return self._narrowed(level, codes)
        return self._level[level - 1]

    def _narrowed(self, level: int, codes: npt.NDArray[np.integer]) -> HeadColumns:
        size = self.sizes[level - 1]
        seen = np.zeros(size, dtype=np.bool_)
        seen[codes] = True
        used = np.flatnonzero(seen)
        if len(used) * _NARROW_SHARE > size:
            return self._level[level - 1]
        place = np.zeros(size, dtype=np.int64)
        place[used] = np.arange(len(used))
        columns = torch.from_numpy(self._tables[level - 1][used])
        return HeadColumns(columns, len(used), place)
