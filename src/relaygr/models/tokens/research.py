"""Tokens of the `meta_research` variant: items and positions; the newest event asks.

There are no candidate rows: the row of the newest event is the user's vector, and candidates are compared
with it. That row depends on the query time, so it is computed in every rank call and never kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relaygr.kernels.interface import Kernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.initial import normal
from relaygr.models.row import RowInput
from relaygr.models.tokens.interface import Int64, Tokens
from relaygr.models.tokens.tables import DirectTable, count_unknown


class ResearchTokens(Tokens):
    """Events of the `meta_research` variant; the target is the newest of them."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        assert config.items is not None
        self.config = config
        self.item = DirectTable(config.items, config.hidden_size)
        self.position = normal(config.position_buckets, config.hidden_size, std=0.02)

    @property
    def dtype(self) -> torch.dtype:
        return self.position.dtype

    def items(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """int64 [i] -> table rows [i, D]."""
        rows: Tensor = self.item(ids)
        return rows

    def history(self, row: RowInput, kernel: Kernel) -> Tensor:
        return self._rows(row, row.cached, len(row.items) - 1)

    def targets(self, row: RowInput, items: Tensor, kernel: Kernel) -> Tensor:
        return self._rows(row, len(row.items) - 1, len(row.items))

    def check_events(self, items: Int64, actions: Int64) -> int:
        return self.check_items("items", items)

    def check_items(self, field: str, items: Int64) -> int:
        return count_unknown(field, self.item.table, items)

    def _rows(self, row: RowInput, start: int, stop: int) -> Tensor:
        places = torch.arange(start, stop).clamp(max=len(self.position) - 1)
        rows: Tensor = self.item(row.items[start:stop])
        return math.sqrt(self.config.hidden_size) * rows + self.position[places]
