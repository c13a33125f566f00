"""Blocked attention on a CPU: row tiles against key blocks, masked parts skipped, nothing n x n.

A tile's scores stay in cache between the two products. HSTU sums over keys without normalising, so key
blocks add up in any order and a zero row of K/V contributes exactly nothing. A softmax merges its blocks by
their largest scores and masks zero rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.kernels.cpu.ranges import KEY_ALIGN, KeyRange, Tile, key_ranges, slice_keys
from relaygr.kernels.cpu.routes import MaskPatch, MatrixRoute, SoftmaxPart
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
    round_up,
)

ROW_ALIGN = 16  # block starts: product shapes repeat, so their generated code is reused
FIXED_TILE = 128  # row tile and alignment in bitwise mode
SOFTMAX_ROWS = 256  # most rows of a softmax tile, whose scores are passed over several times


@dataclass(frozen=True, slots=True)
class BlockedPlan(Plan):
    spec: AttentionSpec
    segments: tuple[Segment, ...]
    layout: RowLayout
    history_tiles: tuple[tuple[Tile, ...], ...]
    candidate_tiles: tuple[tuple[Tile, ...], ...]


class BlockedKernel(Kernel):
    """The CPU back-end.

    Args:
        route: how products are done, per `kernels.select`.
        bitwise: use fixed row tiles, so that a row's bits do not depend on batch mates, micro-batches
            or on how its history was cut into prefetch and appends. Costs up to one tile per block.
    """

    name = "cpu"

    def __init__(self, route: MatrixRoute, bitwise: bool = False) -> None:
        self.route = route
        self.bitwise = bitwise

    def plan(self, spec: AttentionSpec, segments: Sequence[Segment], dtype: torch.dtype) -> BlockedPlan:
        align = FIXED_TILE if self.bitwise else ROW_ALIGN
        layout = pack(segments, align, fixed_tiles=self.bitwise)
        history, candidates = [], []
        for segment, rows in zip(segments, layout.segments, strict=True):
            history.append(self._history_tiles(spec, segment, rows.history, dtype))
            candidates.append(self._candidate_tiles(spec, segment, rows.candidates, dtype))
        return BlockedPlan(spec, tuple(segments), layout, tuple(history), tuple(candidates))

    def run(
        self,
        plan: Plan,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        assert isinstance(plan, BlockedPlan)
        spec = plan.spec
        softmax = spec.weights == "softmax"
        out = v.new_empty(v.shape)  # every row lies in a block, and tiles cover whole blocks
        queries = torch.mul(
            q.transpose(0, 1), spec.alpha, out=q.new_empty(spec.heads, q.shape[0], spec.qk_dim)
        )
        for i, segment in enumerate(plan.segments):
            rows = plan.layout.segments[i]
            keys, values = self._history(segment, layer, k[rows.history], v[rows.history])
            inputs = _Inputs(queries, keys, values, bias, i, segment)
            attend = self._softmax_tile if softmax else self._silu_tile
            for tile in plan.history_tiles[i]:
                attend(tile, rows.history, inputs, None, out)
            if segment.candidates:
                own = self._own(inputs, k, v, rows.candidates)
                for tile in plan.candidate_tiles[i]:
                    attend(tile, rows.candidates, inputs, own, out)
        if not any(plan.history_tiles) and not any(plan.candidate_tiles):
            out.zero_()
        return out if softmax else out.div_(spec.divisor)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self.bitwise:
            return self.route.linear(x, weight, bias)
        tiles = []
        for start in range(0, x.shape[0], FIXED_TILE):
            tile = x[start : start + FIXED_TILE]
            rows = tile.shape[0]
            if rows < FIXED_TILE:
                tile = torch.cat([tile, tile.new_zeros(FIXED_TILE - rows, tile.shape[1])])
            tiles.append(self.route.linear(tile, weight, bias)[:rows])
        return torch.cat(tiles)

    def _own(self, inputs: _Inputs, k: Tensor, v: Tensor, rows: slice) -> _Own:
        count = rows.stop - rows.start
        # Whole aligned blocks: an activation's last bits differ between a vector and its scalar rest.
        mine = slice(rows.start, rows.start + round_up(count, FIXED_TILE if self.bitwise else ROW_ALIGN))
        score = (_wide(inputs.queries[:, mine]).transpose(0, 1) * k[mine]).sum(-1, keepdim=True)
        added = None if inputs.bias is None else inputs.bias.own(inputs.index)
        if added is not None:
            score[:count] += added[..., None]
        return _Own(score, v[mine])

    def _silu_tile(self, tile: Tile, block: slice, inputs: _Inputs, own: _Own | None, out: Tensor) -> None:
        total: Tensor | None = None
        for part in tile.ranges:
            seen = self.route.attend(*inputs.of(tile, part, block, own is not None))
            # More than one block adds up in fp32, whatever the model dtype.
            total = seen if total is None else _wide(total).add_(seen)
        rows = out[tile.start : tile.stop]
        rows[:] = 0 if total is None else total.transpose(0, 1)
        if own is not None:
            score, value = own.rows(tile, block)
            rows.addcmul_(torch.nn.functional.silu(score).to(value.dtype), value)

    def _softmax_tile(self, tile: Tile, block: slice, inputs: _Inputs, own: _Own | None, out: Tensor) -> None:
        total: SoftmaxPart | None = None
        for part in tile.ranges:
            seen = self.route.attend_softmax(*inputs.of(tile, part, block, own is not None))
            total = seen if total is None else total.merge(seen)
        if own is not None:
            score, value = (x.transpose(0, 1) for x in own.rows(tile, block))
            alone = SoftmaxPart(value.to(score.dtype), score, torch.ones_like(score))
            total = alone if total is None else total.merge(alone)
        out[tile.start : tile.stop] = 0 if total is None else total.result().transpose(0, 1)

    def _history_tiles(
        self, spec: AttentionSpec, segment: Segment, rows: slice, dtype: torch.dtype
    ) -> tuple[Tile, ...]:
        if not segment.history:
            return ()
        step = self._row_tile(spec)
        # Fixed tiles stand at fixed positions of the user's row and keep their height and key range,
        # whichever of their rows are new; the rows before and behind are padding.
        offset = segment.cached % step if self.bitwise else 0
        tiles = []
        for first in range(-offset, segment.history, step):
            height = step if self.bitwise else min(step, round_up(segment.history - first, ROW_ALIGN))
            position = segment.cached + first
            low, high = history_visibility(spec, segment.tokens, position, position + height)
            counted = height if self.bitwise else min(height, segment.history - first)
            ranges = key_ranges(spec, low, high, counted, segment.tokens, dtype)
            tiles.append(Tile(rows.start + first, rows.start + first + height, ranges))
        return tuple(tiles)

    def _candidate_tiles(
        self, spec: AttentionSpec, segment: Segment, rows: slice, dtype: torch.dtype
    ) -> tuple[Tile, ...]:
        low, high = candidate_visibility(spec, segment)
        step = self._row_tile(spec)
        tiles = []
        for first in range(0, segment.candidates, step):
            counted = min(step, segment.candidates - first)
            height = step if self.bitwise else round_up(counted, ROW_ALIGN)
            ends = torch.zeros(height, dtype=torch.int64)
            ends[:counted] = high[first : first + counted] if isinstance(high, Tensor) else high
            starts = torch.full_like(ends, low)
            ranges = key_ranges(spec, starts, ends, counted, segment.tokens, dtype)
            tiles.append(Tile(rows.start + first, rows.start + first + height, ranges))
        return tuple(tiles)

    def _row_tile(self, spec: AttentionSpec) -> int:
        if self.bitwise:
            return FIXED_TILE
        return min(self.route.row_tile, SOFTMAX_ROWS) if spec.weights == "softmax" else self.route.row_tile

    @staticmethod
    def _history(segment: Segment, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Head-major keys and values of the whole history, zero rows up to a multiple of KEY_ALIGN."""
        if segment.store is not None:
            if segment.history:
                segment.store.write(layer, segment.cached, k, v)
            return segment.store.read(layer, segment.tokens)
        padded = round_up(segment.history, KEY_ALIGN)
        keys = k.new_zeros(k.shape[1], padded, k.shape[2])
        values = v.new_zeros(v.shape[1], padded, v.shape[2])
        keys[:, : segment.history] = k.transpose(0, 1)
        values[:, : segment.history] = v.transpose(0, 1)
        return keys, values


@dataclass(frozen=True, slots=True, eq=False)
class _Own:
    """Each candidate's score on itself [rows, H, 1], at least fp32, and its value [rows, H, E], padded."""

    score: Tensor
    value: Tensor

    def rows(self, tile: Tile, block: slice) -> tuple[Tensor, Tensor]:
        mine = slice(tile.start - block.start, tile.stop - block.start)
        return self.score[mine], self.value[mine]


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    """What the tiles of one segment read: scaled queries [H, rows, A], keys and values [H, tokens, *]."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    bias: ScoreBias | None
    index: int
    segment: Segment

    def of(
        self, tile: Tile, part: KeyRange, block: slice, candidates: bool
    ) -> tuple[Tensor, Tensor, Tensor, tuple[MaskPatch, ...], Tensor | None]:
        """The arguments of a route for one tile and key range."""
        rows = slice(tile.start - block.start, tile.stop - block.start)
        return (
            self.queries[:, tile.start : tile.stop],
            slice_keys(self.keys, part),
            slice_keys(self.values, part),
            part.patches,
            None if self.bias is None else self._added(rows, part, candidates),
        )

    def _added(self, rows: slice, part: KeyRange, candidates: bool) -> Tensor | None:
        """The bias of one block, [H, 1 or rows, keys], zero on padding; 1 only if it is the same for all."""
        assert self.bias is not None
        count = self.segment.candidates if candidates else self.segment.history
        inside = slice(max(rows.start, 0), min(rows.stop, count))
        keys = slice(part.start, min(part.stop, self.segment.tokens))
        ask = self.bias.candidates if candidates else self.bias.history
        added = ask(self.index, inside, keys)
        if added is None:
            return None
        missing = part.stop - keys.stop
        if added.dim() == 2:
            return torch.nn.functional.pad(added, (0, missing))[:, None]
        above, below = inside.start - rows.start, rows.stop - inside.stop
        return torch.nn.functional.pad(added, (0, missing, above, below))


def _wide(x: Tensor) -> Tensor:
    """At least fp32, for sums."""
    return x if x.dtype == torch.float64 else x.float()
