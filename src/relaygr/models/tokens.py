"""Token embeddings of the `relay` variant: items, actions, positions and time (`hstu.md` section 6).

A history token is a function of its event and the event before it only, so its K/V stay exact however
many events follow. The query time enters candidate tokens only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel
from relaygr.models.config import HstuConfig
from relaygr.models.dense import Dense, Norm, SwishNormStack
from relaygr.models.hashing import hash_rows

GAP_ROWS = 65
NO_PREDECESSOR = GAP_ROWS - 1
ITEM_STACK_WIDTH = 256
_DAY_S = 86_400
_WEEK_S = 7 * _DAY_S
_EPOCH_WEEKDAY_S = 4 * _DAY_S  # the Unix epoch was a Thursday; weeks count from Sunday


# Smallest gap in seconds of each row but the first: 4 ln(1 + gap / 60) >= row.
_GAP_EDGES = torch.tensor([math.ceil(60 * math.expm1(row / 4)) for row in range(1, GAP_ROWS - 1)])


def gap_bucket(seconds: Tensor) -> Tensor:
    """Row of the gap table, min(int(4 ln(1 + max(gap, 0) / 60)), 63), by integer comparison; any int64."""
    return torch.bucketize(seconds, _GAP_EDGES, right=True)


def clock_features(timestamps: Tensor, utc_offset_s: Tensor | int) -> Tensor:
    """Sine and cosine of the time of day and of the week; int64 [n] -> float64 [n, 4]."""
    local = timestamps + utc_offset_s
    day = (local % _DAY_S).to(torch.float64) * (2 * math.pi / _DAY_S)
    week = ((local + _EPOCH_WEEKDAY_S) % _WEEK_S).to(torch.float64) * (2 * math.pi / _WEEK_S)
    return torch.stack([day.sin(), day.cos(), week.sin(), week.cos()], dim=-1)


def last_seen_gap(
    items: Tensor, timestamps: Tensor, candidates: Tensor, visible: Tensor, query_times: Tensor
) -> Tensor:
    """Gap-table rows of the time since each candidate's item last occurred in the history.

    Args:
        items, timestamps: int64 [h].
        candidates: int64 [m].
        visible: int64 [m] or [1]; only events before this index count.
        query_times: int64 [m] or [1].

    Returns:
        int64 [m]; `NO_PREDECESSOR` for an item that does not occur.
    """
    if not len(items):
        return torch.full_like(candidates, NO_PREDECESSOR)
    ordered, order = torch.sort(items, stable=True)
    # Group (first place of the item) and event index as one ascending key: an item's last visible event is
    # the largest key below (group, visible).
    width = len(items) + 1
    keys = torch.searchsorted(ordered, ordered) * width + order
    group = torch.searchsorted(ordered, candidates)
    place = torch.searchsorted(keys, group * width + visible) - 1
    found = (place >= group) & (ordered[place.clamp(min=0)] == candidates)
    gaps = gap_bucket(query_times - timestamps[order[place.clamp(min=0)]])
    return torch.where(found, gaps, torch.full_like(gaps, NO_PREDECESSOR))


class ItemEmbedding(nn.Module):
    """Any int64 id -> item token [D]: rows of a hashed table, summed, through the item stack."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        self.rows = config.item_rows
        self.hashes = config.item_hashes
        self.table = nn.Embedding(config.item_rows, config.embedding_dim)
        self.stack = SwishNormStack(config.embedding_dim, ITEM_STACK_WIDTH, config.hidden_size)
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


class TokenEmbedding(nn.Module):
    """Contextual slots, events and candidates -> rows [n, D], float32 (float64 when the model is)."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.item = ItemEmbedding(config)
        self.action = nn.Parameter(torch.randn(len(config.action_bits), size) * 0.1)
        self.target_action = nn.Parameter(torch.randn(size) * 0.1)
        self.position = nn.Parameter(torch.randn(config.position_buckets, size) * 0.02)
        self.gap = nn.Parameter(torch.randn(GAP_ROWS, size) * 0.1)
        self.clock = nn.Parameter(torch.randn(4, size) * 0.1)
        self.last_seen = nn.Parameter(torch.randn(GAP_ROWS, size) * 0.1) if config.last_seen else None
        slots = len(config.contextual)
        self.slots = nn.ModuleList(Dense(config.embedding_dim, size) for _ in range(slots))

    def contextual(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """Slot values int64 [C] -> rows [C, D]; each slot has its own hash seed and linear map."""
        rows = [
            slot(self.item.lookup(ids[i : i + 1], seed=1 + i), kernel) for i, slot in enumerate(self.slots)
        ]
        table: Tensor = self.position
        return torch.cat(rows).to(table.dtype) + table[: len(rows)]

    def events(
        self,
        items: Tensor,
        actions: Tensor,
        timestamps: Tensor,
        gaps: Tensor,
        positions: Tensor,
        offset: Tensor,
        kernel: Kernel,
    ) -> Tensor:
        """Events -> rows [n, D].

        Args:
            items, actions, timestamps: int64 [n].
            gaps: int64 [n], rows of the gap table.
            positions: int64 [n], from the row start, contextual slots included.
            offset: int64 [n] or [1], seconds added to UTC before reading the clock.
        """
        bits = (actions[:, None] >> torch.arange(len(self.action))) & 1
        rows: Tensor = self.item(items, kernel).to(self.position.dtype)
        rows = rows + kernel.linear(bits.to(rows.dtype), self.action.t())
        return rows + self._place(positions, timestamps, gaps, offset, kernel)

    def candidates(
        self,
        item_tokens: Tensor,
        positions: Tensor,
        query_times: Tensor,
        gaps: Tensor,
        seen_gaps: Tensor | None,
        offset: Tensor,
        kernel: Kernel,
    ) -> Tensor:
        """Candidate rows [m, D] from their item tokens; the other arguments are [m] or [1].

        `seen_gaps` are of `last_seen_gap`, for a model that has them.
        """
        place = self._place(positions, query_times, gaps, offset, kernel) + self.target_action
        if self.last_seen is not None and seen_gaps is not None:
            place = place + self.last_seen[seen_gaps]
        return item_tokens.to(place.dtype) + place

    def _place(
        self, positions: Tensor, timestamps: Tensor, gaps: Tensor, offset: Tensor, kernel: Kernel
    ) -> Tensor:
        """Position, clock and gap parts of rows [n, D]."""
        where = positions.clamp(max=self.config.position_buckets - 1)
        clock = clock_features(timestamps, offset).to(self.clock.dtype)
        return self.position[where] + self.gap[gaps] + kernel.linear(clock, self.clock.t())
