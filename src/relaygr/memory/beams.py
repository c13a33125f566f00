"""Keys and values of beams: one buffer, allocated once; a request takes what all its rounds need, at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from relaygr.memory.extents import Extents
from relaygr.memory.layout import DTYPES


def slot_starts(widths: Sequence[int]) -> tuple[int, ...]:
    """Where the slots of each depth begin, depth by depth without gaps, and where the last end. [T + 1]

    Raises: ValueError for no depths, or one without beams.
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"widths: {tuple(widths)} must be one or more numbers of at least 1")
    return tuple(accumulate(widths, initial=0))


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
        self.device = torch.device(device)
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

    def bytes_for(self, widths: Sequence[int]) -> int:
        """What `reserve` takes: one slot a beam and depth."""
        return slot_starts(widths)[-1] * self.slot_bytes

    def reserve(self, widths: Sequence[int]) -> BeamKv | None:
        """Slots of a request's beams; None if they do not fit now.

        Args:
            widths: most beams of each depth, that is of each round whose codes are fed.
        """
        starts = slot_starts(widths)
        start = self._extents.take(starts[-1])
        return None if start is None else BeamKv(self, start, starts)

    def _part(self, start: int, slots: int) -> Tensor:
        """[2, layers, S, H, d] of a reservation, a view."""
        per_slot = self.slot_bytes // self.dtype.itemsize
        part = self._rows[start * per_slot : (start + slots) * per_slot]
        return part.view(2, self.layers, slots, self.heads, self.dim)

    def _release(self, start: int, slots: int) -> None:
        self._extents.give(start, slots)


class BeamKv:
    """One request's beam slots, depth by depth: each is written once and never moves.

    Depth d has the S_d = starts[d] - starts[d - 1] slots from starts[d - 1] on, in the order of its beams.

    Changes: `write` sets the slots of one layer and depth; `release` gives all back, once.
    Raises: ValueError for shapes or a depth that do not fit; RuntimeError after `release`.

    Attributes:
        starts: where the slots of each depth begin, and where the last end. [T + 1]
        nbytes: what the reservation takes from its pool.
        written_bytes: K/V bytes written so far.
        moved_bytes: those of them that went to slots written before; forks by index leave it at 0.
    """

    def __init__(self, pool: BeamPool, start: int, starts: tuple[int, ...]) -> None:
        self.starts = starts
        self._starts = torch.tensor(starts[:-1], dtype=torch.int32, device=pool.device)
        part = pool._part(start, starts[-1])
        self.nbytes = part.nbytes
        self.written_bytes = self.moved_bytes = 0
        self._filled = [[0] * self.rounds for _ in range(pool.layers)]  # slots of each layer and depth
        self._pool, self._start = pool, start
        self._row_bytes = pool.slot_bytes // pool.layers
        self._part: Tensor | None = part

    @property
    def rounds(self) -> int:
        """T, how many depths there are."""
        return len(self.starts) - 1

    @property
    def slots(self) -> int:
        """S, of all depths together."""
        return self.starts[-1]

    def keys(self, layer: int) -> Tensor:
        """[S, Hkv, d], a view; slots that were not written hold anything."""
        return self._held()[0, layer]

    def values(self, layer: int) -> Tensor:
        """[S, Hkv, d], a view; slots that were not written hold anything."""
        return self._held()[1, layer]

    def rows(self, anc: Tensor) -> Tensor:
        """Rows of `keys` and `values` of the slots that an index names, both int32 [W, t].

        Column d - 1 of `anc` counts the slots of depth d from 0.
        """
        return anc + self._starts[: anc.shape[1]]

    def write(self, layer: int, depth: int, k: Tensor, v: Tensor) -> None:
        """Set the first n slots of one layer and depth; depth from 1 to T, k and v [n, Hkv, d], n <= S_d."""
        held = self._held()
        if not 1 <= depth <= self.rounds:
            raise ValueError(f"depth: {depth} must be in [1, {self.rounds}]")
        first, end = self.starts[depth - 1 : depth + 1]
        count = k.shape[0] if k.dim() else 0
        wanted = (count, self._pool.heads, self._pool.dim)
        if k.shape != wanted or v.shape != wanted or count > end - first:
            raise ValueError(
                f"k {tuple(k.shape)}, v {tuple(v.shape)}: expected {wanted} twice, at most {end - first} rows"
            )
        if k.dtype != held.dtype or v.dtype != held.dtype:
            raise ValueError(f"k {k.dtype}, v {v.dtype}: expected {held.dtype}")
        held[0, layer, first : first + count].copy_(k.detach())
        held[1, layer, first : first + count].copy_(v.detach())
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
            self._pool._release(self._start, self.slots)

    def _held(self) -> Tensor:
        if self._part is None:
            raise RuntimeError("beam slots were used after their release")
        return self._part


class NoBeamKv:
    """Of beams of a model without full-attention layers, which keep neither keys nor values.

    Raises: RuntimeError for any use but `release`: no layer should have asked.
    """

    nbytes = 0

    def write(self, layer: int, depth: int, k: Tensor, v: Tensor) -> None:
        raise RuntimeError(f"beam slots of layer {layer} of a model that keeps none")

    def keys(self, layer: int) -> Tensor:
        raise RuntimeError(f"beam slots of layer {layer} of a model that keeps none")

    def values(self, layer: int) -> Tensor:
        raise RuntimeError(f"beam slots of layer {layer} of a model that keeps none")

    def rows(self, anc: Tensor) -> Tensor:
        raise RuntimeError("beam slots of a model that keeps none")

    def release(self) -> None:
        """Nothing is held."""
