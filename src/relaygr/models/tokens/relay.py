"""Tokens of the `relay` variant and of the transformer: items, actions, positions, time.

A history token is a function of its event and the event before it only, so its K/V stay exact however
many events follow. The query time enters candidate tokens only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel
from relaygr.models.config import RankerConfig
from relaygr.models.dense import Dense, Norm, SwishNormStack
from relaygr.models.hashing import hash_rows
from relaygr.models.initial import normal
from relaygr.models.row import RowInput
from relaygr.models.tokens.interface import Int64, Tokens, check_bits
from relaygr.models.tokens.times import (
    GAP_ROWS,
    NO_PREDECESSOR,
    clock_features,
    gap_bucket,
    last_seen_gap,
)


class ItemEmbedding(nn.Module):
    """Any int64 id -> item token [D]: rows of a hashed table, summed, through the item stack."""

    def __init__(self, config: RankerConfig) -> None:
        super().__init__()
        self.rows = config.item_rows
        self.hashes = config.item_hashes
        self.table = nn.Embedding(config.item_rows, config.embedding_dim)
        self.stack = SwishNormStack(config.embedding_dim, config.stack_size, config.hidden_size)
        self.norm = Norm(config.hidden_size, 1e-5)
        nn.init.normal_(self.table.weight, std=config.embedding_dim**-0.5)

    def lookup(self, ids: Tensor, seed: int = 0) -> Tensor:
        """int64 [n] -> [n, embedding_dim]."""
        seeds = range(seed * self.hashes, (seed + 1) * self.hashes)
        looked_up: Tensor = self.table(hash_rows(ids, self.rows, seeds)).sum(0)
        return looked_up

    def forward(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """int64 [n] -> item tokens [n, D]."""
        out: Tensor = self.norm(self.stack(self.lookup(ids), kernel))
        return out


class RelayTokens(Tokens):
    """Slots, events and candidates of the `relay` variant."""

    def __init__(self, config: RankerConfig) -> None:
        super().__init__()
        self.config = config
        size, buckets = config.hidden_size, config.position_buckets
        self.item = ItemEmbedding(config)
        self.action = normal(len(config.action_bits), size, std=0.1)
        self.target_action = normal(size, std=0.1)
        self.position = normal(buckets, size, std=0.02) if buckets else None
        self.gap = normal(GAP_ROWS, size, std=0.1)
        self.clock = normal(4, size, std=0.1)
        self.last_seen = normal(GAP_ROWS, size, std=0.1) if config.last_seen else None
        slots = len(config.contextual)
        self.slots = nn.ModuleList(Dense(config.embedding_dim, size) for _ in range(slots))

    @property
    def dtype(self) -> torch.dtype:
        return self.gap.dtype

    def items(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """int64 [i] -> item tokens [i, D]."""
        tokens: Tensor = self.item(ids, kernel)
        return tokens

    def history(self, row: RowInput, kernel: Kernel) -> Tensor:
        slots = len(row.contextual)
        tokens = slots + len(row.items)
        parts = []
        if row.cached < slots:
            parts.append(self._slots(row.contextual, kernel)[row.cached :])
        first = max(row.cached - slots, 0)
        if first < len(row.items):
            gaps = gap_bucket(row.timestamps[max(first - 1, 0) :].diff())
            if first == 0:
                gaps = torch.cat([gaps.new_full((1,), NO_PREDECESSOR), gaps])
            bits = (row.actions[first:, None] >> torch.arange(len(self.action))) & 1
            rows = self.item(row.items[first:], kernel).to(self.dtype)
            rows = rows + kernel.linear(bits.to(rows.dtype), self.action.t())
            places = torch.arange(slots + first, tokens)
            parts.append(rows + self._place(row, places, row.timestamps[first:], gaps, kernel))
        return torch.cat(parts)

    def targets(self, row: RowInput, items: Tensor, kernel: Kernel) -> Tensor:
        """Candidate rows; those at one place and time share what is not their item's."""
        slots = len(row.contextual)
        high = torch.tensor([slots + len(row.items)]) if row.candidate_high is None else row.candidate_high
        query = torch.as_tensor(row.query_time).reshape(-1)
        event = high - slots
        gaps = torch.full_like(event, NO_PREDECESSOR)
        if len(row.items):
            last = row.timestamps[(event - 1).clamp(min=0)]
            gaps = torch.where(event > 0, gap_bucket(query - last), gaps)
        place = self._place(row, high, query, gaps, kernel) + self.target_action
        if self.last_seen is not None:
            seen = last_seen_gap(row.items, row.timestamps, row.candidates, event, query)
            place = place + self.last_seen[seen]
        return items.to(place.dtype) + place

    def check_events(self, items: Int64, actions: Int64) -> int:
        """Every int64 is a known id; only actions are bounded."""
        check_bits(actions, len(self.config.action_bits))
        return 0

    def _slots(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """Slot values int64 [C] -> rows [C, D]; each slot has its own hash seed and linear map."""
        rows = [
            slot(self.item.lookup(ids[i : i + 1], seed=1 + i), kernel) for i, slot in enumerate(self.slots)
        ]
        both = torch.cat(rows).to(self.dtype)
        if self.position is None:
            return both
        return both + self.position[torch.arange(len(rows)).clamp(max=len(self.position) - 1)]

    def _place(
        self, row: RowInput, positions: Tensor, timestamps: Tensor, gaps: Tensor, kernel: Kernel
    ) -> Tensor:
        """Position, clock and gap parts of rows [n, D]; the arguments are int64 [n] or [1]."""
        clock = clock_features(timestamps, row.utc_offset_s).to(self.clock.dtype)
        place = self.gap[gaps] + kernel.linear(clock, self.clock.t())
        if self.position is None:
            return place
        return self.position[positions.clamp(max=len(self.position) - 1)] + place
