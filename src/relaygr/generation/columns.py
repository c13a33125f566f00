"""Which columns of the head a round needs, and in which of them each code's logit stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relaygr.generation.catalogue.tokens import SidTokenMap
from relaygr.generation.normalise import Normalization

Int64s: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = slice | Tensor | None

# Under `valid` only codes that may follow are computed. Picking columns copies them, so that pays only where
# it leaves out most of a level.
_NARROW_SHARE = 4


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
    """The columns of each level for one token map; made once a map, shared by its requests.

    Args:
        tokens: how codes are tokens of the model.
        vocab_size: of the model; every token is below it.
    """

    def __init__(self, tokens: SidTokenMap, vocab_size: int) -> None:
        tokens.check_vocabulary(vocab_size)
        self._tokens = tokens
        self._whole = [HeadColumns(None, vocab_size, table) for table in tokens.tables]
        self._level: list[HeadColumns] = []
        for level, table in enumerate(tokens.tables, start=1):
            picked = tokens.columns(level)
            columns = picked if isinstance(picked, slice) else torch.tensor(picked)
            self._level.append(HeadColumns(columns, len(table), None))

    @property
    def levels(self) -> int:
        return len(self._level)

    def tokens(self, level: int, codes: Int64s) -> Int64s:
        """The tokens to feed for `codes` of `level`. [n]"""
        return self._tokens.of_level(level, codes)

    def of(self, level: int, normalization: Normalization, codes: npt.NDArray[np.integer]) -> HeadColumns:
        """Columns of round `level`, in which only `codes` (repeats allowed) can be selected."""
        if normalization is Normalization.FULL:
            return self._whole[level - 1]
        if normalization is Normalization.VALID:
            return self._narrowed(level, codes)
        return self._level[level - 1]

    def _narrowed(self, level: int, codes: npt.NDArray[np.integer]) -> HeadColumns:
        table = self._tokens.tables[level - 1]
        size = len(table)
        seen = np.zeros(size, dtype=np.bool_)
        seen[codes] = True
        used = np.flatnonzero(seen)
        if len(used) * _NARROW_SHARE > size:
            return self._level[level - 1]
        place = np.zeros(size, dtype=np.int64)
        place[used] = np.arange(len(used))
        columns = torch.from_numpy(table[used])
        return HeadColumns(columns, len(used), place)
