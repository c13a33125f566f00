"""HSTU attention arranged for training: few passes over the scores, and no backward pass per slice.

The values are those of the reference kernel. What differs is the work: rows are split instead of sliced
(a slice's backward touches the whole tensor), scale and divisor are folded into queries and masks, and a
tile of rows only multiplies with keys that one of its rows can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.kernels.interface import (
    AttentionSpec,
    Kernel,
    Plan,
    RowLayout,
    Segment,
    candidate_visibility,
    history_visibility,
    pack,
)

ROW_TILE = 256


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Rows [start, stop) of one part of a segment, the keys [0, keys) they see, and 1/N where they do."""

    start: int
    stop: int
    keys: int
    mask: Tensor  # [stop - start, keys]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingPlan(Plan):
    """Tiles per segment; `sizes` are its history and candidate rows, alternating; `own` [rows, 1, 1] is
    1/N on candidate rows, which also see themselves."""

    spec: AttentionSpec
    segments: tuple[Segment, ...]
    layout: RowLayout
    sizes: tuple[int, ...]
    history: tuple[tuple[Tile, ...], ...]
    candidates: tuple[tuple[Tile, ...], ...]
    own: Tensor


class TrainingKernel(Kernel):
    """For whole rows without a store, under autograd."""

    name = "training"

    def plan(self, spec: AttentionSpec, segments: Sequence[Segment], dtype: torch.dtype) -> TrainingPlan:
        history, candidates, sizes = [], [], []
        for segment in segments:
            if segment.store is not None:
                raise ValueError("store: training keeps no keys and values")
            low, high = history_visibility(spec, segment.tokens, 0, segment.tokens)
            history.append(_tiles(low, high, spec.divisor, dtype))
            first, last = candidate_visibility(spec, segment)
            end = last if isinstance(last, Tensor) else torch.full((segment.candidates,), last)
            candidates.append(_tiles(torch.full_like(end, first), end, spec.divisor, dtype))
            sizes += [segment.history, segment.candidates]
        share = torch.tensor([0.0, 1 / spec.divisor], dtype=dtype).repeat(len(segments))
        own = share.repeat_interleave(torch.tensor(sizes))[:, None, None]
        layout = pack(segments, align=1, fixed_tiles=False)
        return TrainingPlan(
            spec, tuple(segments), layout, tuple(sizes), tuple(history), tuple(candidates), own
        )

    def run(
        self,
        plan: Plan,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        assert isinstance(plan, TrainingPlan)
        sizes = list(plan.sizes)
        q = q * plan.spec.alpha
        own = F.silu((q * k).sum(-1, keepdim=True)) * plan.own * v
        queries = [part.transpose(0, 1) for part in torch.split(q, sizes)]
        keys, values = torch.split(k, sizes)[::2], torch.split(v, sizes)[::2]
        out: list[Tensor] = []
        for i, (key, value) in enumerate(zip(keys, values, strict=True)):
            key_columns, value_rows = key.permute(1, 2, 0), value.transpose(0, 1)
            out += _attend(queries[2 * i], key_columns, value_rows, plan.history[i], None)
            own_bias = None if bias is None else bias[i]
            out += _attend(queries[2 * i + 1], key_columns, value_rows, plan.candidates[i], own_bias)
        return torch.cat(out, dim=1).transpose(0, 1) + own

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)


def _tiles(low: Tensor, high: Tensor, divisor: float, dtype: torch.dtype) -> tuple[Tile, ...]:
    tiles = []
    for start in range(0, len(low), ROW_TILE):
        stop = min(start + ROW_TILE, len(low))
        first, last = low[start:stop, None], high[start:stop, None]
        key = torch.arange(int(last.max()))
        seen = (key >= first) & (key < last)
        tiles.append(Tile(start, stop, len(key), seen.to(dtype) / divisor))
    return tuple(tiles)


def _attend(q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile], bias: Tensor | None) -> list[Tensor]:
    """q [H, n, A], k [H, A, t], v [H, t, E] -> [H, rows, E] of each tile."""
    out = []
    for tile in tiles:
        scores = q[:, tile.start : tile.stop] @ k[:, :, : tile.keys]
        if bias is not None:
            mine = bias[:, tile.start : tile.stop] if bias.dim() == 3 else bias[:, None]
            scores = scores + mine[..., : tile.keys]
        out.append((F.silu(scores) * tile.mask) @ v[:, : tile.keys])
    return out
