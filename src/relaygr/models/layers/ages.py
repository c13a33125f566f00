"""A learned score bias by the age of a history token at query time; candidate rows only, never in K/V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.kernels.interface import ScoreBias
from relaygr.models.row import RowInput
from relaygr.models.tokens.times import NO_PREDECESSOR, gap_bucket


@dataclass(frozen=True, slots=True, eq=False)
class Ages:
    """How old a segment's history tokens are when its candidates are scored.

    Attributes:
        rows: rows of the gap table, int64 [runs, tokens]; a run is candidates of one query time.
        runs: the run of each candidate, int64 [candidates], or None if they share one.
    """

    rows: Tensor
    runs: Tensor | None = None

    @classmethod
    def of(cls, row: RowInput, each: bool = False) -> Ages:
        """Of a row; with `each`, one time for all is treated as a time for each, down to the bits."""
        query, runs = torch.as_tensor(row.query_time), None
        if query.dim() or each:
            query, runs = torch.unique_consecutive(query.expand(len(row.candidates)), return_inverse=True)
        query = query.reshape(-1)
        ages = gap_bucket(query[:, None] - row.timestamps)
        slots = torch.full((len(ages), len(row.contextual)), NO_PREDECESSOR)
        return cls(torch.cat([slots, ages], dim=-1), runs)


@dataclass(frozen=True, slots=True, eq=False)
class AgeBias(ScoreBias):
    """The bias of one layer; per segment [H, runs, tokens]."""

    biases: Sequence[Tensor]
    ages: Sequence[Ages]

    @classmethod
    def of(cls, table: Tensor, ages: Sequence[Ages]) -> AgeBias:
        """From a table [buckets, H]."""
        return cls([F.embedding(one.rows, table).movedim(-1, 0) for one in ages], ages)

    def history(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        return None

    def candidates(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        bias, runs = self.biases[segment][..., keys], self.ages[segment].runs
        return bias[:, 0] if runs is None else bias.index_select(1, runs[rows])

    def own(self, segment: int) -> Tensor | None:
        return None
