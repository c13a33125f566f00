"""Relative position and time bias of every row on every key (research variant).

Row i is biased by the distance to key j in places, and in time from key j to the event after row i; for the
newest event that is the query. Its row is therefore provisional: it runs as the batch's only "candidate".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relaygr.kernels.interface import ScoreBias
from relaygr.models.hstu import HstuConfig
from relaygr.models.initial import normal
from relaygr.models.row import RowInput

TIME_ROWS = 129
_LOG_STEP = 0.301

# Smallest |gap| in seconds of each row but the first: int(ln(gap) / 0.301) >= row.
_EDGES = torch.tensor([math.ceil(math.exp(_LOG_STEP * row)) for row in range(1, TIME_ROWS)])


def time_row(seconds: Tensor) -> Tensor:
    """Row of the time table, min(int(ln(max(|gap|, 1)) / 0.301), 128); any int64 but the smallest."""
    return torch.bucketize(seconds.abs(), _EDGES, right=True)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Times of a segment's events.

    Attributes:
        times: int64 [h].
        after: int64 [h], the time of the next event, for the newest one that of the query.
        first: index of the segment's first new row.
    """

    times: Tensor
    after: Tensor
    first: int

    @classmethod
    def of(cls, row: RowInput) -> Steps:
        query = torch.as_tensor(row.query_time).reshape(-1)[:1]
        return cls(row.timestamps, torch.cat([row.timestamps[1:], query]), row.cached)


class RelativeTables(nn.Module):
    """One layer's tables: 2 N - 1 distances in places, and buckets of time."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        self.span = config.max_seq_len - 1
        self.position = normal(2 * config.max_seq_len - 1, std=0.02)
        timed = config.layer.relative_bias == "position_time"
        self.time = normal(TIME_ROWS, std=0.02) if timed else None

    def bias(self, steps: Steps, rows: Tensor, keys: Tensor) -> Tensor:
        """Bias of events `rows` [n] on events `keys` [t], [n, t]."""
        bias = self.position[self.span + keys - rows[:, None]]
        if self.time is None:
            return bias
        return bias + self.time[time_row(steps.after[rows][:, None] - steps.times[keys])]


@dataclass(frozen=True, slots=True, eq=False)
class RelativeBias(ScoreBias):
    """The bias of one layer, the same for all heads."""

    tables: RelativeTables
    steps: Sequence[Steps]
    heads: int
    dtype: torch.dtype

    def history(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        first = self.steps[segment].first
        return self._block(segment, torch.arange(first + rows.start, first + rows.stop), keys)

    def candidates(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        return self._block(segment, self._newest(segment), keys)

    def own(self, segment: int) -> Tensor | None:
        newest = self._newest(segment)
        bias = self.tables.bias(self.steps[segment], newest, newest)
        return bias.to(self.dtype).expand(1, self.heads)

    def _newest(self, segment: int) -> Tensor:
        return torch.tensor([len(self.steps[segment].times) - 1])

    def _block(self, segment: int, rows: Tensor, keys: slice) -> Tensor:
        bias = self.tables.bias(self.steps[segment], rows, torch.arange(keys.start, keys.stop))
        return bias.to(self.dtype).expand(self.heads, -1, -1)
