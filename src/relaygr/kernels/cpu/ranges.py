"""Which keys a tile of rows reads: blocks of the history, masked only where some row sees less."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.kernels.cpu.routes import MaskPatch
from relaygr.kernels.interface import AttentionSpec, round_up

KEY_BLOCK = 2048  # keys of one score tile: 512 x 2048 bf16 fill the 2 MiB of two L2s
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


def key_ranges(
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


def slice_keys(x: Tensor, part: KeyRange) -> Tensor:
    """Keys [start, stop) of a head-major tensor, extended by zero rows past its end."""
    if part.stop <= x.shape[1]:
        return x[:, part.start : part.stop]
    return torch.nn.functional.pad(x[:, part.start :], (0, 0, 0, part.stop - x.shape[1]))
