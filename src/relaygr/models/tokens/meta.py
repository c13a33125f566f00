"""Tokens of the `meta_stu` variant: direct tables, stacks for items and actions, positions and ages.

With `backward_time` positions count back from the candidates and every
token carries its age at query time, so K/V hold for one request only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel
from relaygr.models.dense import Norm, SwishNormStack
from relaygr.models.hstu import HstuConfig
from relaygr.models.initial import normal
from relaygr.models.row import RowInput
from relaygr.models.tokens.interface import Int64, Tokens
from relaygr.models.tokens.tables import MISSING, DirectTable, count_unknown
from relaygr.models.variants import module_key

_UNIT_S = 60


class NormedStack(nn.Module):
    """Linear -> SwishLN -> Linear -> LayerNorm."""

    def __init__(self, inputs: int, middle: int, outputs: int) -> None:
        super().__init__()
        self.stack = SwishNormStack(inputs, middle, outputs)
        self.norm = Norm(outputs, 1e-5)

    def forward(self, x: Tensor, kernel: Kernel) -> Tensor:
        out: Tensor = self.norm(self.stack(x, kernel))
        return out


class ActionEncoder(nn.Module):
    """Each action type that an event has contributes its row, others zeros, side by side."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        types, dim = len(config.action_weights), config.action_dim
        self.weights = config.action_weights
        self.table = normal(types, dim, std=0.1)
        self.target = normal(types * dim, std=0.1)
        self.stack = NormedStack(types * dim, config.stack_size, config.hidden_size)

    def forward(self, actions: Tensor, kernel: Kernel) -> Tensor:
        """int64 [n] -> [n, D]."""
        present = (actions[:, None] & torch.tensor(self.weights)) > 0
        out: Tensor = self.stack((present[..., None] * self.table).flatten(1), kernel)
        return out

    def targets(self, kernel: Kernel) -> Tensor:
        """What stands in a candidate's place of an action, [1, D]."""
        out: Tensor = self.stack(self.target[None], kernel)
        return out


class MetaTokens(Tokens):
    """Slots, events and candidates of the `meta_stu` variant."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        assert config.items is not None
        self.config = config
        size, slots = config.hidden_size, len(config.contextual)
        self.scale = math.sqrt(size)
        self.item = DirectTable(config.items, config.items.dim or config.embedding_dim)
        self.content = NormedStack(self.item.weight.shape[1], config.stack_size, size)
        self.action = ActionEncoder(config) if config.action_mode == "add" else None
        names = {module_key(table.name): table for table in config.slot_tables}
        self.slot_tables = nn.ModuleDict(
            {name: DirectTable(table, table.dim or config.embedding_dim) for name, table in names.items()}
        )
        width = config.embedding_dim
        self.slot_weight = normal(slots, width, size, std=width**-0.5) if slots else None
        self.slot_bias = nn.Parameter(torch.zeros(slots, size)) if slots else None
        self.position = normal(config.position_buckets, size, std=0.02)
        timed = config.position == "backward_time"
        self.time = normal(config.time_buckets + 1, size, std=0.02) if timed else None

    @property
    def dtype(self) -> torch.dtype:
        return self.position.dtype

    def items(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """int64 [i] -> table rows [i, embedding_dim]."""
        rows: Tensor = self.item(ids)
        return rows

    def history(self, row: RowInput, kernel: Kernel) -> Tensor:
        slots, end = len(row.contextual), len(row.contextual) + len(row.items)
        parts = []
        if row.cached < slots:
            parts.append(self._slots(row)[row.cached :])
        first = max(row.cached - slots, 0)
        if first < len(row.items):
            rows = self.content(self.item(row.items[first:]), kernel).to(self.dtype)
            if self.action is not None:
                rows = rows + self.action(row.actions[first:], kernel)
            parts.append(rows)
        # K/V of one pass belong to one query time; without candidates there is none to ask for.
        query = torch.as_tensor(row.query_time).reshape(-1)[-1:]
        query = query if len(query) else torch.zeros(1, dtype=torch.int64)
        times = torch.cat([torch.zeros(slots, dtype=torch.int64), row.timestamps])
        place = self._place(torch.arange(row.cached, end), end, slots, query - times[row.cached :])
        return self.scale * torch.cat(parts) + place

    def targets(self, row: RowInput, items: Tensor, kernel: Kernel) -> Tensor:
        end = len(row.contextual) + len(row.items)
        rows = self.content(items, kernel).to(self.dtype)
        if self.action is not None:
            rows = rows + self.action.targets(kernel)
        age = torch.zeros(1, dtype=torch.int64)
        place = self._place(torch.tensor([end]), end, len(row.contextual), age)
        scaled: Tensor = self.scale * rows
        return scaled + place

    def check_slots(self, contextual: Int64) -> int:
        return sum(
            count_unknown(f"contextual.{table.name}", table, value.reshape(1))
            for table, value in zip(self.config.slot_tables, contextual, strict=True)
            if value != MISSING
        )

    def check_events(self, items: Int64, actions: Int64) -> int:
        return self.check_items("items", items)

    def check_items(self, field: str, items: Int64) -> int:
        return count_unknown(field, self.item.table, items)

    def _slots(self, row: RowInput) -> Tensor:
        """Rows of the profile slots [C, D], each through its own matrix."""
        assert self.slot_weight is not None
        assert self.slot_bias is not None
        limits = self.config.slot_min_history or (0,) * len(row.contextual)
        vectors = []
        for table, value, least in zip(self.config.slot_tables, row.contextual, limits, strict=True):
            absent = int(value) == MISSING or len(row.items) < least
            empty = self.slot_weight.new_zeros(1, self.slot_weight.shape[1])
            vectors.append(empty if absent else self.slot_tables[module_key(table.name)](value[None]))
        return torch.bmm(torch.stack(vectors), self.slot_weight)[:, 0] + self.slot_bias

    def _place(self, places: Tensor, end: int, slots: int, ages: Tensor) -> Tensor:
        """Position and age parts [n, D] of tokens at `places` [n], counted from the row's start."""
        if self.time is None:
            return self.position[places.clamp(max=len(self.position) - 1)]
        back = torch.where(places < slots, places, (end - places).clamp(min=0) + slots)
        limit = len(self.time) - 1
        if self.config.time_bucket_limit == "embedding_dim":
            limit = min(limit, self.config.hidden_size - 1)
        return (
            self.position[back.clamp(max=len(self.position) - 1)] + self.time[age_row(ages).clamp(max=limit)]
        )


def age_row(seconds: Tensor) -> Tensor:
    """int(sqrt(max(age, 0) / 60)) by whole numbers; int64 of any size."""
    minutes = seconds.clamp(min=0) // _UNIT_S
    root = minutes.to(torch.float64).sqrt().to(torch.int64)
    # The floating root may be one off for large numbers.
    root = root - (root * root > minutes).to(torch.int64)
    return root + ((root + 1) * (root + 1) <= minutes).to(torch.int64)
