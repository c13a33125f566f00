"""Rotary positions on half-split pairs (i, i + d/2), with angles looked up from a table.

Source: Su et al., "RoFormer" (arXiv 2104.09864); the "llama3" blend is that of Llama 3.1's release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.models.decoder.config import RopeConfig

_FIRST_ROWS = 4096


def frequencies(rope: RopeConfig, dim: int) -> Tensor:
    """Angle per position of each pair, float64 [dim / 2]."""
    plain: Tensor = rope.theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    turns = rope.original_positions * plain / (2 * math.pi)  # within the original context
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0, 1)
    return plain * (kept + (1 - kept) / rope.factor)


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """What turns each row, float32 [rows, 1, dim]; the sine is negative on the left half."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor) -> Tensor:
        """x [rows, heads, dim], at least fp32, turned; same dtype."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin)


class RopeTable:
    """Angles of positions [0, limit), made once and as far as they were asked for.

    Changes: the table grows to twice its rows; a table that was handed out stays valid.
    Raises: ValueError for a position at or behind `limit`.
    """

    def __init__(self, rope: RopeConfig, dim: int, limit: int) -> None:
        with torch.device("cpu"):  # whatever device a model is being made on
            self._frequencies = frequencies(rope, dim)
        self._limit = limit
        # One attribute, so that a concurrent reader never sees two tables of different ages.
        self._tables = self._angles(min(_FIRST_ROWS, limit), torch.device("cpu"))

    def run(self, start: int, rows: int, device: torch.device) -> Rotation:
        """Rotation of adjacent positions [start, start + rows): views, nothing is gathered."""
        cos, sin = self._reach(start + rows, device)
        part = slice(start, start + rows)
        return Rotation(cos[part, None], sin[part, None])

    def _reach(self, end: int, device: torch.device) -> tuple[Tensor, Tensor]:
        tables = self._tables
        if end > self._limit:
            raise ValueError(f"position: {end - 1} must be below max_positions, {self._limit}")
        have = len(tables[0])
        if end > have or tables[0].device != device:
            rows = min(max(end, 2 * have), self._limit) if end > have else have
            self._tables = tables = self._angles(rows, device)
        return tables

    def _angles(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        # Ordinary tensors even if first asked for while serving: training may use them afterwards.
        with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
            angles = torch.arange(rows, dtype=torch.float64)[:, None] * self._frequencies
            cos, sin = angles.cos().float(), angles.sin().float()
            return torch.cat([cos, cos], -1).to(device), torch.cat([-sin, sin], -1).to(device)
