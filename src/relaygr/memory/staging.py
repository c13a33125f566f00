"""Staging buffers: what a device copies its pages to and from, so that the link sees whole runs.

Pages of an entry lie anywhere on the device, its host memory in few runs. An accelerator copies a run over
the link in one piece and spreads it over pages by itself. Where the pages are ordinary memory of the host
there is no link, and a stop on the way is a copy for nothing: lanes on a CPU copy directly, and have no
buffers. `relaygr bench transfer` measures both ways.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.memory.host import HostPool, Piece
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool


class Staging:
    """Two buffers in each direction, for even and odd layers, on the pool's device; allocated once.

    A layer uses the buffer that the one before does not, so that its copy over the link need not wait for the
    other's spreading. Stretches longer than a buffer go in parts: nothing ever grows.

    Args:
        tokens: rows of the largest layer that a buffer holds.

    Raises: ValueError for less than one row.
    """

    def __init__(self, layout: KvLayout, tokens: int, device: torch.device) -> None:
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} must be at least 1")
        self.layout, self.tokens = layout, tokens
        self.buffer_bytes = tokens * max(layout.row_bytes(layer) for layer in range(layout.layers))
        self._in, self._out = (
            tuple(torch.empty(self.buffer_bytes, dtype=torch.uint8, device=device) for _ in range(2))
            for _ in range(2)
        )

    @property
    def nbytes(self) -> int:
        """Of all four."""
        return sum(buffer.nbytes for buffer in self._in + self._out)

    def load_layer(self, host: HostPool, pool: PagePool, piece: Piece, layer: int) -> int:
        """Host to buffer to pages; returns the copies over the link, one for each part of the stretch."""
        parts = self._parts(piece)
        for part in parts:
            staged = self._views(self._in[layer % 2], part.rows)
            for rows, mine, theirs in zip(
                staged, (host.keys, host.values), (pool.keys, pool.values), strict=True
            ):
                rows.copy_(mine[layer].narrow(1, part.host_row, part.rows))
                target = theirs[layer].flatten(1, 2)
                if part.where is None:
                    target.narrow(1, part.device_row, part.rows).copy_(rows)
                else:
                    target.index_copy_(1, part.where.to(target.device), rows)
        return len(parts)

    def store_layer(self, host: HostPool, pool: PagePool, piece: Piece, layer: int) -> int:
        """Pages to buffer to host; returns the copies over the link."""
        parts = self._parts(piece)
        for part in parts:
            staged = self._views(self._out[layer % 2], part.rows)
            for rows, mine, theirs in zip(
                staged, (host.keys, host.values), (pool.keys, pool.values), strict=True
            ):
                source = theirs[layer].flatten(1, 2)
                if part.where is None:
                    rows.copy_(source.narrow(1, part.device_row, part.rows))
                else:
                    torch.index_select(source, 1, part.where.to(source.device), out=rows)
                mine[layer].narrow(1, part.host_row, part.rows).copy_(rows)
        return len(parts)

    def _parts(self, piece: Piece) -> list[Piece]:
        """The stretch in pieces that fit into a buffer."""
        return [
            Piece(
                piece.token + first,
                min(self.tokens, piece.rows - first),
                piece.device_row + first,
                piece.host_row + first,
                None if piece.where is None else piece.where[first : first + self.tokens],
            )
            for first in range(0, piece.rows, self.tokens)
        ]

    def _views(self, buffer: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Keys [H, rows, A] and values [H, rows, E] in a buffer, one behind the other."""
        layout = self.layout
        elements = buffer.view(layout.dtype)
        keys = layout.heads * rows * layout.qk_dim
        values = layout.heads * rows * layout.v_dim
        return (
            elements[:keys].view(layout.heads, rows, layout.qk_dim),
            elements[keys : keys + values].view(layout.heads, rows, layout.v_dim),
        )
