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

KEY_BLOCK = 2048  # keys of one score tile: 512 x 2048 bf16 fill the 2 MiB of two L2s
ROW_ALIGN = 16  # block starts: product shapes repeat, so their generated code is reused
FIXED_TILE = 128  # row tile and alignment in bitwise mode
KEY_ALIGN = 32  # key ranges end here; a multiple of the vector width


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys [start, stop) against a tile, with the masks that the range needs."""

    start: int
    stop: int
    patches: tuple[MaskPatch, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """Packed rows [start, stop) and the key ranges they see."""

    start: int
    stop: int
    ranges: tuple[KeyRange, ...]


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
        step = FIXED_TILE if self.bitwise else self.route.row_tile
        # Fixed tiles stand at fixed positions of the user's row and keep their height and key range,
        # whichever of their rows are new; the rows before and behind are padding.
        offset = segment.cached % step if self.bitwise else 0
        tiles = []
        for first in range(-offset, segment.history, step):
            height = step if self.bitwise else min(step, round_up(segment.history - first, ROW_ALIGN))
            position = segment.cached + first
            low, high = history_visibility(spec, segment.tokens, position, position + height)
            counted = height if self.bitwise else min(height, segment.history - first)
            ranges = _key_ranges(spec, low, high, counted, segment.tokens, dtype)
            tiles.append(Tile(rows.start + first, rows.start + first + height, ranges))
        return tuple(tiles)

    def _candidate_tiles(
        self, spec: AttentionSpec, segment: Segment, rows: slice, dtype: torch.dtype
    ) -> tuple[Tile, ...]:
        low, high = candidate_visibility(spec, segment)
        step = FIXED_TILE if self.bitwise else self.route.row_tile
        tiles = []
        for first in range(0, segment.candidates, step):
            counted = min(step, segment.candidates - first)
            height = step if self.bitwise else round_up(counted, ROW_ALIGN)
            ends = torch.zeros(height, dtype=torch.int64)
            ends[:counted] = high[first : first + counted] if isinstance(high, Tensor) else high
            starts = torch.full_like(ends, low)
            ranges = _key_ranges(spec, starts, ends, counted, segment.tokens, dtype)
            tiles.append(Tile(rows.start + first, rows.start + first + height, ranges))
        return tuple(tiles)

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
            _slice_keys(self.keys, part),
            _slice_keys(self.values, part),
            part.patches,
            None if self.bias is None else self._added(rows, part, candidates),
        )

    def _added(self, rows: slice, part: KeyRange, candidates: bool) -> Tensor | None:
        """The bias of one block, [H, 1 or rows, keys], zero on padding."""
        assert self.bias is not None
        count = self.segment.candidates if candidates else self.segment.history
        inside = slice(max(rows.start, 0), min(rows.stop, count))
        keys = slice(part.start, min(part.stop, self.segment.tokens))
        ask = self.bias.candidates if candidates else self.bias.history
        added = ask(self.index, inside, keys)
        if added is None:
            return None
        missing = part.stop - keys.stop
        if added.shape[1] == 1 and inside.stop - inside.start > 1:
            return torch.nn.functional.pad(added, (0, missing))
        above, below = inside.start - rows.start, rows.stop - inside.stop
        return torch.nn.functional.pad(added, (0, missing, above, below))


def _key_ranges(
    spec: AttentionSpec, low: Tensor, high: Tensor, counted: int, tokens: int, dtype: torch.dtype
) -> tuple[KeyRange, ...]:
    """Key blocks that cover the first `counted` rows' intervals, masked only where some row sees less."""
    if not counted:
        return ()
    start = int(low[:counted].min()) // KEY_ALIGN * KEY_ALIGN
    stop = int(high[:counted].max())
    all_from, all_until = int(low[:counted].max()), int(high[:counted].min())
    # Past `tokens` keys are rows of zeros, which only a softmax would count.
    tail_masked = all_until < stop or stop < tokens or spec.weights == "softmax"
    parts = []
    for a in range(start - start % KEY_BLOCK, stop, KEY_BLOCK):
        first, last = max(a, start), round_up(min(a + KEY_BLOCK, stop), KEY_ALIGN)
        patches = []
        if first < all_from:
            patches.append(_mask(low, high, first, first, min(round_up(all_from, KEY_ALIGN), last), dtype))
        if tail_masked and last > all_until:
            begin = max(first, all_until // KEY_ALIGN * KEY_ALIGN)
            if patches:
                begin = max(begin, first + patches[0].stop)
            if begin < last:
                patches.append(_end_patch(low, high, first, begin, last, dtype))
        parts.append(KeyRange(first, last, tuple(patches)))
    return tuple(parts)


def _wide(x: Tensor) -> Tensor:
    """At least fp32, for sums."""
    return x if x.dtype == torch.float64 else x.float()


def _mask(low: Tensor, high: Tensor, base: int, start: int, stop: int, dtype: torch.dtype) -> MaskPatch:
    key = torch.arange(start, stop)
    mask = (key >= low[:, None]) & (key < high[:, None])
    return MaskPatch(start - base, stop - base, mask.to(dtype))


def _end_patch(low: Tensor, high: Tensor, base: int, start: int, stop: int, dtype: torch.dtype) -> MaskPatch:
    """The mask where rows end; the causal triangle if each row ends one key after the row above it."""
    first = int(high[0])
    rows = torch.arange(first, first + len(high))
    if int(low.max()) <= start and torch.equal(high, rows):
        return MaskPatch(start - base, stop - base, None, first - 1 - start)
    return _mask(low, high, base, start, stop, dtype)


def _slice_keys(x: Tensor, part: KeyRange) -> Tensor:
    """Keys [start, stop) of a head-major tensor, extended by zero rows past its end."""
    if part.stop <= x.shape[1]:
        return x[:, part.start : part.stop]
    return torch.nn.functional.pad(x[:, part.start :], (0, 0, 0, part.stop - x.shape[1]))
