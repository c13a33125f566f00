"""Integer hashing of item ids to table rows: every int64 is a valid id, nothing is clamped."""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int64; torch only has the arithmetic one."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hash_rows(ids: Tensor, rows: int, seeds: range) -> Tensor:
    """Rows in [0, rows) of each id, by one independent hash a seed.

    Args:
        ids: int64 [n], any values.
        rows: table size.

    Returns:
        int64 [seeds, n].

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    """
    starts = torch.tensor([_signed((seed + 1) * _GAMMA % (1 << 64)) for seed in seeds])
    x = ids + starts[:, None]
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 1) % rows
