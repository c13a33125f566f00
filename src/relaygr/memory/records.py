"""Records of tokens fed to beams on linear-attention layers: buffers allocated once, slots written once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from relaygr.memory.extents import Extents
from relaygr.memory.recurrent import LinearBytes, RecurrentLayout


@dataclass(frozen=True, slots=True, eq=False)
class LayerRecords:
    """One layer's records of one request, views; slots that were not written hold anything.

    Attributes:
        keys: [slots, Hk, dk].
        updates: [slots, Hv, dv], what a token added to the state for its key.
        log_decay: [slots, *decay_shape], a token's own ln a; None for constant decays.
        rows: [slots, C] before the convolution; C = 0 without one.
        starts: the first slot of each depth; beam b of depth d has slot starts[d - 1] + b.
    """

    keys: Tensor
    updates: Tensor
    log_decay: Tensor | None
    rows: Tensor
    starts: tuple[int, ...]


class RecordPool:
    """All beam records of a process, of one model.

    Changes: only its books on `reserve` and `release`; records only through a `BeamRecords`. Not thread-safe.
    Records of a fresh reservation hold what the last owner left.
    Raises: ValueError for a pool that does not hold one slot.

    Args:
        total_bytes: never more than this; rounded down to whole slots.
    """

    def __init__(self, layout: RecurrentLayout, total_bytes: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.slot_bytes = layout.slot_bytes.total
        slots = total_bytes // self.slot_bytes
        if slots < 1:
            raise ValueError(f"total_bytes: {total_bytes} must be at least one slot, {self.slot_bytes}")
        self._extents = Extents(slots)
        wide = layout.state_dtype
        self._parts: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "keys": ((layout.key_heads, layout.key_dim), layout.key_dtype),
            "updates": ((layout.value_heads, layout.value_dim), wide),
            "log_decay": (layout.decay_shape or (0,), wide),
            "rows": ((layout.channels,), layout.row_dtype),
        }
        # Written to, so that the pages are the process's own before the first request.
        self._buffers = {
            name: torch.zeros(slots * layout.layers * math.prod(shape), dtype=dtype, device=device)
            for name, (shape, dtype) in self._parts.items()
        }

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
        """What `reserve` takes: exactly one slot for each beam of each round."""
        return sum(widths) * self.slot_bytes

    def reserve(self, widths: Sequence[int]) -> BeamRecords | None:
        """Slots for `widths[d - 1]` beams at each depth d that is fed; None if they do not fit now."""
        if not widths or min(widths) < 1:
            raise ValueError(f"widths: {tuple(widths)} must be one of at least 1 for each round")
        start = self._extents.take(sum(widths))
        return None if start is None else BeamRecords(self, start, tuple(widths))

    def _views(self, start: int, slots: int) -> dict[str, Tensor]:
        """Each part of a reservation, [layers, slots, *shape]."""
        layers, views = self.layout.layers, {}
        for name, (shape, _) in self._parts.items():
            each = layers * math.prod(shape)
            part = self._buffers[name][start * each : (start + slots) * each]
            views[name] = part.view(layers, slots, *shape)
        return views

    def _release(self, start: int, slots: int) -> None:
        self._extents.give(start, slots)


class BeamRecords:
    """One request's records, step-major: the slot of (depth, beam) is written once and never moves.

    Changes: `write` and `write_rows` set the slots of one layer and depth; `release` gives all back, once.
    Raises: ValueError for shapes, dtypes or a depth that do not fit; RuntimeError after `release`.

    Attributes:
        widths: beams of each depth.
        starts: the first slot of each depth.
        nbytes: of the reservation, records and convolution rows apart.
        written_bytes: bytes written so far.
        moved_bytes: those of them that went to slots written before; forks by index leave it at 0.
    """

    def __init__(self, pool: RecordPool, start: int, widths: tuple[int, ...]) -> None:
        self.widths = widths
        self.starts = (0, *accumulate(widths[:-1]))
        slot = pool.layout.slot_bytes
        self.nbytes = LinearBytes(sum(widths) * slot.state, sum(widths) * slot.convolution)
        self.written_bytes = self.moved_bytes = 0
        self._pool, self._start = pool, start
        self._views: dict[str, Tensor] | None = pool._views(start, sum(widths))
        self._filled: dict[tuple[str, int, int], int] = {}

    def layer(self, layer: int) -> LayerRecords:
        """The records of one layer."""
        parts = self._parts()
        decays = parts["log_decay"][layer] if self._pool.layout.decay_shape else None
        return LayerRecords(
            parts["keys"][layer], parts["updates"][layer], decays, parts["rows"][layer], self.starts
        )

    def write(self, layer: int, depth: int, keys: Tensor, updates: Tensor, log_decay: Tensor | None) -> None:
        """Set beams 0 .. n-1 of one depth, from 1: [n, Hk, dk], [n, Hv, dv], [n, *decay_shape].

        `log_decay` is None for constant decays.
        """
        if (log_decay is None) != (not self._pool.layout.decay_shape):
            raise ValueError("log_decay: must be given unless decays are constant")
        parts = {"keys": keys, "updates": updates}
        if log_decay is not None:
            parts["log_decay"] = log_decay
        self._set(layer, depth, parts)

    def write_rows(self, layer: int, depth: int, rows: Tensor) -> None:
        """Set the convolution rows [n, C] of beams 0 .. n-1 of one depth."""
        self._set(layer, depth, {"rows": rows})

    @property
    def released(self) -> bool:
        return self._views is None

    def release(self) -> None:
        """Give the slots back; a second call does nothing."""
        if self._views is not None:
            self._views = None
            self._pool._release(self._start, sum(self.widths))

    def _set(self, layer: int, depth: int, parts: dict[str, Tensor]) -> None:
        views = self._parts()
        if not 1 <= depth <= len(self.widths):
            raise ValueError(f"depth: {depth} must be in [1, {len(self.widths)}]")
        first = next(iter(parts.values()))
        count = first.shape[0] if first.dim() else 0
        if count > self.widths[depth - 1]:
            raise ValueError(f"rows: {count} are more than the {self.widths[depth - 1]} of depth {depth}")
        for name, part in parts.items():
            view = views[name]
            wanted = (count, *view.shape[2:])
            if part.shape != wanted or part.dtype != view.dtype:
                raise ValueError(f"{name}: {part.dtype} {tuple(part.shape)}: expected {view.dtype} {wanted}")
        start = self.starts[depth - 1]
        for name, part in parts.items():
            views[name][layer, start : start + count].copy_(part.detach())
            each = math.prod(part.shape[1:]) * part.element_size()
            before = self._filled.get((name, layer, depth), 0)
            self.written_bytes += count * each
            self.moved_bytes += min(before, count) * each
            self._filled[name, layer, depth] = max(before, count)

    def _parts(self) -> dict[str, Tensor]:
        if self._views is None:
            raise RuntimeError("records were used after their release")
        return self._views
