"""All host memory of the cache in two tensors, and the copies between it and a page pool."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relaygr.cache.interface import HostRun
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import SAME
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool, Placement


class Piece(NamedTuple):
    """`rows` tokens of an entry from token `token` on, adjacent in host memory, and in the pool if it can be.

    Attributes:
        where: the rows of the pool in token order, int64 [rows], if they are not adjacent there; then
            `device_row` is only the first of them.
    """

    token: int
    rows: int
    device_row: int
    host_row: int
    where: Tensor | None = None


class HostPool:
    """Keys and values [Y, H, tokens, W], allocated once; pages are mapped on first use.

    `format` says what a row is; as on the device W is A for keys, E for values. `layout` is the device's.

    Changes: only the rows named. Who may touch which rows is decided elsewhere. Never pinned memory.
    Raises: ValueError for sizes and ranges that do not fit, and for a format whose rows share scales.
    """

    def __init__(self, layout: KvLayout, tokens: int, format: HostFormat = SAME) -> None:
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} must be at least 1")
        self.layout, self.tokens, self.format = layout, tokens, format
        self.token_bytes = format.token_bytes(layout)
        shape = (layout.layers, layout.heads, tokens)
        self.keys = format.empty(shape, layout.qk_dim, layout.dtype)
        self.values = format.empty(shape, layout.v_dim, layout.dtype)

    @property
    def nbytes(self) -> int:
        return self.tokens * self.token_bytes

    def pieces(self, place: Placement, runs: Sequence[HostRun], start: int, tokens: int) -> Iterator[Piece]:
        """Tokens [start, start + tokens) in as few copies as there are stretches adjacent on both sides.

        `place` and `runs` begin at token 0. Raises ValueError for tokens that one of them does not cover.
        """
        device = _device_stretches(place, self.layout.page_tokens)
        host = [(run.start, run.tokens, run.offset) for run in runs]
        for name, stretches in (("pages", device), ("runs", host)):
            covered = sum(length for _, length, _ in stretches)
            if start < 0 or tokens < 0 or start + tokens > covered:
                raise ValueError(f"tokens [{start}, {start + tokens}): {name} hold {covered}")
        return _pieces(device, host, start, start + tokens)

    def stretches(
        self, place: Placement, runs: Sequence[HostRun], start: int, tokens: int
    ) -> Iterator[Piece]:
        """As `pieces`, but one for each run, whatever pages it is spread over; for copies by layer."""
        found: list[Piece] = []
        for run in runs:
            first, end = max(run.start, start), min(run.start + run.tokens, start + tokens)
            if first >= end:
                continue
            parts = list(self.pieces(place, runs, first, end - first))
            where = None
            if len(parts) > 1:
                where = torch.cat([torch.arange(p.device_row, p.device_row + p.rows) for p in parts])
            found.append(parts[0]._replace(rows=end - first, where=where))
        return iter(found)

    def store(self, pool: PagePool, piece: Piece) -> None:
        """Pool to host: one copy of keys and one of values, on all layers and heads at once."""
        rows, device_row, host_row = piece.rows, piece.device_row, piece.host_row
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            source = theirs.flatten(2, 3).narrow(2, device_row, rows)
            self.format.encode(source, mine.narrow(2, host_row, rows))

    def load(self, pool: PagePool, piece: Piece) -> None:
        """Host to pool: one copy of keys and one of values, on all layers and heads at once."""
        rows, device_row, host_row = piece.rows, piece.device_row, piece.host_row
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            target = theirs.flatten(2, 3).narrow(2, device_row, rows)
            self.format.decode(mine.narrow(2, host_row, rows), target)

    def store_layer(self, pool: PagePool, piece: Piece, layer: int) -> None:
        """Pool to host: one copy of keys and one of values, of all heads of one layer."""
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            source = theirs[layer : layer + 1].flatten(2, 3)  # [1, H, pages * page_tokens, dim], a view
            rows = (
                source.narrow(2, piece.device_row, piece.rows)
                if piece.where is None
                else source.index_select(2, piece.where)
            )
            self.format.encode(rows, mine[layer : layer + 1].narrow(2, piece.host_row, piece.rows))

    def load_layer(self, pool: PagePool, piece: Piece, layer: int) -> None:
        """Host to pool: one copy of keys and one of values, of all heads of one layer."""
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            target = theirs[layer : layer + 1].flatten(2, 3)  # [1, H, pages * page_tokens, dim], a view
            stored = mine[layer : layer + 1].narrow(2, piece.host_row, piece.rows)
            if piece.where is None:
                self.format.decode(stored, target.narrow(2, piece.device_row, piece.rows))
            elif self.format.exact:
                target.index_copy_(2, piece.where, stored)
            else:
                rows = target.new_empty((*target.shape[:2], piece.rows, target.shape[3]))
                self.format.decode(stored, rows)
                target.index_copy_(2, piece.where, rows)

    @property
    def form(self) -> tuple[str, str]:
        """Element type on the device, and the format of rows here, scales included."""
        return str(self.layout.dtype).removeprefix("torch."), self.format.name

    def raw(self, host_row: int, rows: int) -> bytes:
        """Rows as they lie here, keys before values; `raw_bytes(rows)` of them, good for `put_raw` alone."""
        parts = (self.keys.narrow(2, host_row, rows), self.values.narrow(2, host_row, rows))
        return b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts)

    def put_raw(self, host_row: int, rows: int, data: bytearray | memoryview) -> None:
        """Set rows to what `raw` of as many rows gave. Raises ValueError for data of another size."""
        if len(data) != self.raw_bytes(rows):
            raise ValueError(f"data: {len(data)} bytes, {rows} rows have {self.raw_bytes(rows)}")
        at = 0
        for mine in (self.keys, self.values):
            part = mine.narrow(2, host_row, rows)
            flat = torch.frombuffer(data, dtype=mine.dtype, count=part.numel(), offset=at)
            part.copy_(flat.view(part.shape))
            at += part.numel() * mine.itemsize

    def raw_bytes(self, rows: int) -> int:
        return rows * self.token_bytes

    def crc(self, host_row: int, rows: int) -> int:
        """Checksum of `rows` rows of host memory, over all layers and heads."""
        return _crc(self.keys.narrow(2, host_row, rows), self.values.narrow(2, host_row, rows))


def page_crc(pool: PagePool, page: int, rows: int) -> int:
    """Checksum of the first `rows` rows of a page: equal to an exact `HostPool`'s `crc` of the same rows."""
    return _crc(pool.keys[:, :, page, :rows], pool.values[:, :, page, :rows])


def clear_tail(pool: PagePool, page: int, rows: int, layer: int | None = None) -> None:
    """Zero what lies behind the first `rows` rows of a page, on all layers or on one."""
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    pool.keys[layers, :, page, rows:].zero_()
    pool.values[layers, :, page, rows:].zero_()


_Stretch = tuple[int, int, int]  # first token, tokens, first row


def _device_stretches(place: Placement, page_tokens: int) -> list[_Stretch]:
    found, start = [], 0
    for page, count in place.runs:
        found.append((start, count * page_tokens, page * page_tokens))
        start += count * page_tokens
    return found


def _pieces(device: list[_Stretch], host: list[_Stretch], token: int, end: int) -> Iterator[Piece]:
    for (device_token, device_length, device_row), (host_token, host_length, host_row) in _overlaps(
        device, host
    ):
        behind = min(device_token + device_length, host_token + host_length, end)
        if token < behind:
            yield Piece(
                token, behind - token, device_row + token - device_token, host_row + token - host_token
            )
            token = behind


def _overlaps(left: list[_Stretch], right: list[_Stretch]) -> Iterator[tuple[_Stretch, _Stretch]]:
    """Pairs that share tokens, in token order; both lists are gapless from token 0 on."""
    i = j = 0
    while i < len(left) and j < len(right):
        yield left[i], right[j]
        left_end, right_end = left[i][0] + left[i][1], right[j][0] + right[j][1]
        i += left_end <= right_end
        j += right_end <= left_end


def _crc(keys: Tensor, values: Tensor) -> int:
    crc = 0
    for part in (keys, values):
        crc = zlib.crc32(part.contiguous().view(torch.uint8).cpu().numpy().data, crc)
    return crc
