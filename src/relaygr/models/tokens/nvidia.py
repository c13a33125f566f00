"""Tokens of the `nvidia` variant: an event is an item token and an action token."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel
from relaygr.models.dense import ReluStack
from relaygr.models.hstu import HstuConfig
from relaygr.models.initial import normal
from relaygr.models.row import RowInput
from relaygr.models.switches import Table
from relaygr.models.tokens.interface import Int64, Tokens
from relaygr.models.tokens.tables import DirectTable, count_unknown
from relaygr.models.variants import module_key


class NvidiaTokens(Tokens):
    """Slots, interleaved events and candidates of the `nvidia` variant."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        assert config.items is not None
        self.config = config
        size, buckets = config.hidden_size, config.position_buckets
        self.item = self._table(config.items)
        self.action = None if config.actions is None else self._table(config.actions)
        names = {module_key(table.name): table for table in config.slot_tables}
        self.slot_tables = nn.ModuleDict({name: self._table(table) for name, table in names.items()})
        width = self.item.weight.shape[1]
        last = config.relu_last
        self.token_mlp = ReluStack(width, config.token_mlp, size, last=last) if config.token_mlp else None
        slot_width = config.slot_tables[0].dim or config.embedding_dim if config.slot_tables else width
        self.slot_mlp = ReluStack(slot_width, config.slot_mlp, size, last=last) if config.slot_mlp else None
        self.position = normal(buckets, size, std=0.02) if buckets else None

    @property
    def dtype(self) -> torch.dtype:
        return self.item.weight.dtype

    def items(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """int64 [i] -> table rows [i, width]."""
        rows: Tensor = self.item(ids)
        return rows

    def history(self, row: RowInput, kernel: Kernel) -> Tensor:
        slots, per = len(row.contextual), self.config.tokens_per_event
        parts = []
        if row.cached < slots:
            vectors = [
                self.slot_tables[module_key(table.name)](value[None])
                for table, value in zip(self.config.slot_tables, row.contextual, strict=True)
            ]
            parts.append(self._through(self.slot_mlp, torch.cat(vectors), kernel)[row.cached :])
        # A cached prefix may end between an item and its action.
        first, skipped = divmod(max(row.cached - slots, 0), per)
        if first < len(row.items):
            vectors = [self.item(row.items[first:])]
            if self.action is not None:
                vectors.append(self.action(row.actions[first:]))
            events = torch.stack(vectors, dim=1).flatten(0, 1)[skipped:]
            parts.append(self._through(self.token_mlp, events, kernel))
        rows = torch.cat(parts)
        return self._place(rows, torch.arange(row.cached, row.cached + len(rows)))

    def targets(self, row: RowInput, items: Tensor, kernel: Kernel) -> Tensor:
        end = len(row.contextual) + self.config.tokens_per_event * len(row.items)
        return self._place(self._through(self.token_mlp, items, kernel), torch.tensor([end]))

    def check_slots(self, contextual: Int64) -> int:
        return sum(
            count_unknown(f"contextual.{table.name}", table, value.reshape(1))
            for table, value in zip(self.config.slot_tables, contextual, strict=True)
        )

    def check_events(self, items: Int64, actions: Int64) -> int:
        unknown = self.check_items("items", items)
        return (
            unknown if self.action is None else unknown + count_unknown("actions", self.action.table, actions)
        )

    def check_items(self, field: str, items: Int64) -> int:
        return count_unknown(field, self.item.table, items)

    def _table(self, table: Table) -> DirectTable:
        return DirectTable(table, table.dim or self.config.embedding_dim)

    def _through(self, network: ReluStack | None, x: Tensor, kernel: Kernel) -> Tensor:
        return (x if network is None else network(x, kernel)).to(self.dtype)

    def _place(self, rows: Tensor, places: Tensor) -> Tensor:
        """sqrt(D) x + position, or x alone in a model without positions."""
        if self.position is None:
            return rows
        places = places.clamp(max=len(self.position) - 1)
        return math.sqrt(self.config.hidden_size) * rows + self.position[places]
