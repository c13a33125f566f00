"""Staging buffers: what a device copies its pages to and from, so that the link sees whole runs.

Pages of an entry lie anywhere on the device, its host memory in few runs. An accelerator copies a run over
the link in one piece and spreads it over pages by itself. Where the pages are ordinary memory of the host
there is no link, and a stop on the way is a copy for nothing: lanes on a CPU copy directly, and have no
buffers. `relaygr bench transfer` measures both ways.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.memory.format import HostFormat
from relaygr.memory.formats import SAME
from relaygr.memory.host import HostPool, Piece
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool


class Staging:
    """Two buffers in each direction, for even and odd layers, on the pool's device; allocated once.

    A layer uses the buffer that the one before does not, so that its copy over the link need not wait for the
    other's spreading. Stretches longer than a buffer go in parts: nothing ever grows.

    Args:
        tokens: rows of the largest layer that a buffer holds.
        format: of the rows in host memory, which are those that cross the link.

    Raises: ValueError for less than one row.
    """

    def __init__(
        self, layout: KvLayout, tokens: int, device: torch.device, format: HostFormat = SAME
    ) -> None:
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} must be at least 1")
        self.layout, self.tokens = layout, tokens
        self.buffer_bytes = tokens * max(format.row_bytes(layout, layer) for layer in range(layout.layers))
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
            staged = self._views(self._in[layer % 2], host, part.rows)
            for rows, mine, theirs in zip(
                staged, (host.keys, host.values), (pool.keys, pool.values), strict=True
            ):
                rows.copy_(mine[layer].narrow(1, part.host_row, part.rows))
                target = theirs[layer].flatten(1, 2)
                if part.where is None:
                    host.format.decode(rows[None], target.narrow(1, part.device_row, part.rows)[None])
                else:
                    read = rows if host.format.exact else _like(target, part.rows)
                    if read is not rows:
                        host.format.decode(rows[None], read[None])
                    target.index_copy_(1, part.where.to(target.device), read)
        return len(parts)

    def store_layer(self, host: HostPool, pool: PagePool, piece: Piece, layer: int) -> int:
        """Pages to buffer to host; returns the copies over the link."""
        parts = self._parts(piece)
        for part in parts:
            staged = self._views(self._out[layer % 2], host, part.rows)
            for rows, mine, theirs in zip(
                staged, (host.keys, host.values), (pool.keys, pool.values), strict=True
            ):
                source = theirs[layer].flatten(1, 2)
                if part.where is None:
                    host.format.encode(source.narrow(1, part.device_row, part.rows)[None], rows[None])
                elif host.format.exact:
                    torch.index_select(source, 1, part.where.to(source.device), out=rows)
                else:
                    read = torch.index_select(source, 1, part.where.to(source.device))
                    host.format.encode(read[None], rows[None])
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

    @staticmethod
    def _views(buffer: Tensor, host: HostPool, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values, [H, rows, W] each, one behind the other in a buffer, as the host has them."""
        heads, first = host.layout.heads, 0
        views: list[Tensor] = []
        for like in (host.keys, host.values):
            width = like.shape[-1]
            nbytes = heads * rows * width * like.itemsize
            flat = buffer[first : first + nbytes].view(like.dtype)
            views.append(flat.view(heads, rows, width))
            first += nbytes
        return views[0], views[1]


def _like(pages: Tensor, rows: int) -> Tensor:
    """Device rows [H, rows, D], not initialised."""
    return pages.new_empty((pages.shape[0], rows, pages.shape[2]))
