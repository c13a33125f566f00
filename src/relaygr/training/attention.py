"""Attention arranged for training: few passes over the scores, and no backward pass per slice.

The values are those of the reference kernel. What differs is the work: rows are split instead of sliced
(a slice's backward touches the whole tensor), scale and divisor are folded into queries and masks, and a
tile of rows only multiplies with keys that one of its rows can see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.kernels.interface import (
    AttentionSpec,
    Kernel,
    Plan,
    RowLayout,
    ScoreBias,
    Segment,
    candidate_visibility,
    history_visibility,
    pack,
)

ROW_TILE = 256

BlockBias = Callable[[int, slice, slice], Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Rows [start, stop) of one part of a segment and the keys [0, keys) they see.

    `mask` [stop - start, keys] is 1/N where they do; for a softmax it is -inf where they do not.
    """

    start: int
    stop: int
    keys: int
    mask: Tensor


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
            history.append(_tiles(low, high, spec, dtype))
            first, last = candidate_visibility(spec, segment)
            end = last if isinstance(last, Tensor) else torch.full((segment.candidates,), last)
            candidates.append(_tiles(torch.full_like(end, first), end, spec, dtype))
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
        bias: ScoreBias | None = None,
    ) -> Tensor:
        assert isinstance(plan, TrainingPlan)
        sizes, softmax = list(plan.sizes), plan.spec.weights == "softmax"
        q = q * plan.spec.alpha
        own = (q * k).sum(-1, keepdim=True)
        queries = [part.transpose(0, 1) for part in torch.split(q, sizes)]
        alone = [part.transpose(0, 1) for part in torch.split(own, sizes)]
        keys, values = torch.split(k, sizes)[::2], torch.split(v, sizes)
        out: list[Tensor] = []
        for i, key in enumerate(keys):
            if bias is not None and bias.own(i) is not None:
                raise ValueError("bias: a bias on oneself is not trained")
            key_columns = key.permute(1, 2, 0)
            value_rows, mine = (part.transpose(0, 1) for part in values[2 * i : 2 * i + 2])
            for tile in plan.history[i]:
                scores = _scores(queries[2 * i], key_columns, tile, None if bias is None else bias.history, i)
                weights = (scores + tile.mask).softmax(-1) if softmax else F.silu(scores) * tile.mask
                out.append(weights @ value_rows[:, : tile.keys])
            for tile in plan.candidates[i]:
                scores = _scores(
                    queries[2 * i + 1], key_columns, tile, None if bias is None else bias.candidates, i
                )
                if not softmax:
                    out.append((F.silu(scores) * tile.mask) @ value_rows[:, : tile.keys])
                    continue
                rows = slice(tile.start, tile.stop)
                weights = torch.cat([scores + tile.mask, alone[2 * i + 1][:, rows]], dim=-1).softmax(-1)
                past, self_weight = torch.split(weights, [tile.keys, 1], dim=-1)
                out.append(past @ value_rows[:, : tile.keys] + self_weight * mine[:, rows])
        together = torch.cat(out, dim=1).transpose(0, 1)
        return together if softmax else together + F.silu(own) * plan.own * v

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)


def _tiles(low: Tensor, high: Tensor, spec: AttentionSpec, dtype: torch.dtype) -> tuple[Tile, ...]:
    tiles = []
    for start in range(0, len(low), ROW_TILE):
        stop = min(start + ROW_TILE, len(low))
        first, last = low[start:stop, None], high[start:stop, None]
        key = torch.arange(int(last.max()))
        seen = (key >= first) & (key < last)
        if spec.weights == "softmax":
            mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))
        else:
            mask = seen.to(dtype) / spec.divisor
        tiles.append(Tile(start, stop, len(key), mask))
    return tuple(tiles)


def _scores(q: Tensor, k: Tensor, tile: Tile, bias: BlockBias | None, segment: int) -> Tensor:
    """Scores of a tile, q [H, n, A] and k [H, A, t] -> [H, rows, keys]."""
    rows, keys = slice(tile.start, tile.stop), slice(0, tile.keys)
    scores = q[:, rows] @ k[:, :, keys]
    added = None if bias is None else bias(segment, rows, keys)
    if added is None:
        return scores
    return scores + (added[:, None] if added.dim() < scores.dim() else added)
