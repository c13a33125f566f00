"""Keys and values of beams: one buffer, allocated once; a request takes what all its rounds need, at once."""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.memory.extents import Extents
from relaygr.memory.layout import DTYPES


class BeamPool:
    """All beam K/V of a process, of one model.

    Changes: only its books on `reserve` and `release`; rows only through a `BeamKv`. Not thread-safe: one
    thread reserves and releases. Rows of a fresh reservation hold what the last owner left, so nothing may
    read a slot before it is written.
    Raises: ValueError for a shape that cannot be, or a pool that does not hold one slot.

    Args:
        layers, heads, dim: of the model's K/V.
        total_bytes: never more than this; rounded down to whole slots.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        total_bytes: int,
        device: torch.device | str = "cpu",
    ) -> None:
        for name, value in (("layers", layers), ("heads", heads), ("dim", dim)):
            if value < 1:
                raise ValueError(f"{name}: {value} must be at least 1")
        if dtype not in DTYPES:
            raise ValueError(f"dtype: {dtype} must be one of {', '.join(str(d) for d in DTYPES)}")
        self.layers, self.heads, self.dim, self.dtype = layers, heads, dim, dtype
        self.slot_bytes = 2 * layers * heads * dim * dtype.itemsize
        slots = total_bytes // self.slot_bytes
        if slots < 1:
            raise ValueError(f"total_bytes: {total_bytes} must be at least one slot, {self.slot_bytes}")
        self._extents = Extents(slots)
        # Written to, so that the pages are the process's own before the first request.
        self._rows = torch.zeros(slots * self.slot_bytes // dtype.itemsize, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self._extents.size * self.slot_bytes

    @property
    def free_bytes(self) -> int:
        return self._extents.free * self.slot_bytes

    @property
    def used_bytes(self) -> int:
        return self.nbytes - self.free_bytes

    @property
    def largest_bytes(self) -> int:
        """The largest reservation that would be granted now."""
        return self._extents.largest * self.slot_bytes

    def bytes_for(self, rounds: int, width: int) -> int:
        """What `reserve` takes: exactly rounds x width slots."""
        return rounds * width * self.slot_bytes

    def reserve(self, rounds: int, width: int) -> BeamKv | None:
        """Slots of `rounds` depths of up to `width` beams; None if they do not fit now.

        Args:
            rounds: T, decode steps of the request; at least 1.
            width: widest of the rounds whose codes are fed; at least 1.
        """
        if rounds < 1 or width < 1:
            raise ValueError(f"rounds: {rounds}, width: {width} must be at least 1")
        start = self._extents.take(rounds * width)
        return None if start is None else BeamKv(self, start, rounds, width)

    def _part(self, start: int, rounds: int, width: int) -> Tensor:
        """[2, layers, T, W, H, d] of a reservation, a view."""
        per_slot = self.slot_bytes // self.dtype.itemsize
        part = self._rows[start * per_slot : (start + rounds * width) * per_slot]
        return part.view(2, self.layers, rounds, width, self.heads, self.dim)

    def _release(self, start: int, slots: int) -> None:
        self._extents.give(start, slots)


class BeamKv:
    """One request's beam slots, step-major: slot (depth, beam) is written once and never moves.

    Changes: `write` sets the slots of one layer and depth; `release` gives all back, once.
    Raises: ValueError for shapes or a depth that do not fit; RuntimeError after `release`.

    Attributes:
        nbytes: what the reservation takes from its pool.
        written_bytes: K/V bytes written so far.
        moved_bytes: those of them that went to slots written before; forks by index leave it at 0.
    """

    def __init__(self, pool: BeamPool, start: int, rounds: int, width: int) -> None:
        self.rounds, self.width = rounds, width
        self.nbytes = pool.bytes_for(rounds, width)
        self.written_bytes = self.moved_bytes = 0
        self._filled = [[0] * rounds for _ in range(pool.layers)]  # slots of each layer and depth
        self._pool, self._start = pool, start
        self._row_bytes = pool.slot_bytes // pool.layers
        self._part: Tensor | None = pool._part(start, rounds, width)

    def keys(self, layer: int) -> Tensor:
        """[T, W, Hkv, d], a view; rows that were not written hold anything."""
        return self._rows()[0, layer]

    def values(self, layer: int) -> Tensor:
        """[T, W, Hkv, d], a view; rows that were not written hold anything."""
        return self._rows()[1, layer]

    def write(self, layer: int, depth: int, k: Tensor, v: Tensor) -> None:
        """Set slots (depth, 0 .. n-1) of one layer; depth from 1 to T, k and v [n, Hkv, d], n <= W."""
        rows = self._rows()
        count = k.shape[0] if k.dim() else 0
        wanted = (count, self._pool.heads, self._pool.dim)
        if k.shape != wanted or v.shape != wanted or count > self.width:
            raise ValueError(
                f"k {tuple(k.shape)}, v {tuple(v.shape)}: expected {wanted} twice, at most {self.width} rows"
            )
        if not 1 <= depth <= self.rounds:
            raise ValueError(f"depth: {depth} must be in [1, {self.rounds}]")
        if k.dtype != rows.dtype or v.dtype != rows.dtype:
            raise ValueError(f"k {k.dtype}, v {v.dtype}: expected {rows.dtype}")
        rows[0, layer, depth - 1, :count].copy_(k.detach())
        rows[1, layer, depth - 1, :count].copy_(v.detach())
        filled = self._filled[layer]
        self.written_bytes += count * self._row_bytes
        self.moved_bytes += min(filled[depth - 1], count) * self._row_bytes
        filled[depth - 1] = max(filled[depth - 1], count)

    @property
    def released(self) -> bool:
        return self._part is None

    def release(self) -> None:
        """Give the slots back; a second call does nothing."""
        if self._part is not None:
            self._part = None
            self._pool._release(self._start, self.rounds * self.width)

    def _rows(self) -> Tensor:
        if self._part is None:
            raise RuntimeError("beam slots were used after their release")
        return self._part
