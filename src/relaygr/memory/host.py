"""All host memory of the cache in two tensors, and the copies between it and a page pool."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relaygr.cache.interface import HostRun
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool, Placement


class Piece(NamedTuple):
    """`rows` tokens of an entry from token `token` on, adjacent in the pool and adjacent in host memory."""

    token: int
    rows: int
    device_row: int
    host_row: int


class HostPool:
    """Keys [Y, H, tokens, A] and values [Y, H, tokens, E], allocated once; pages are mapped on first use.

    Changes: only the rows named. Who may touch which rows is decided elsewhere. Never pinned memory.
    Raises: ValueError for sizes and ranges that do not fit.
    """

    def __init__(self, layout: KvLayout, tokens: int) -> None:
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} must be at least 1")
        self.layout, self.tokens = layout, tokens
        shape = (layout.layers, layout.heads, tokens)
        self.keys = torch.empty((*shape, layout.qk_dim), dtype=layout.dtype)
        self.values = torch.empty((*shape, layout.v_dim), dtype=layout.dtype)

    @property
    def nbytes(self) -> int:
        return self.tokens * self.layout.token_bytes

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

    def store(self, pool: PagePool, piece: Piece) -> None:
        """Pool to host: one copy of keys and one of values, on all layers and heads at once."""
        _, rows, device_row, host_row = piece
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            mine.narrow(2, host_row, rows).copy_(theirs.flatten(2, 3).narrow(2, device_row, rows))

    def load(self, pool: PagePool, piece: Piece) -> None:
        """Host to pool: one copy of keys and one of values, on all layers and heads at once."""
        _, rows, device_row, host_row = piece
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            theirs.flatten(2, 3).narrow(2, device_row, rows).copy_(mine.narrow(2, host_row, rows))

    @property
    def form(self) -> tuple[str, str]:
        """Element type, and how elements are scaled."""
        return str(self.layout.dtype).removeprefix("torch."), "none"

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
        return rows * self.layout.token_bytes

    def crc(self, host_row: int, rows: int) -> int:
        """Checksum of `rows` rows of host memory, over all layers and heads."""
        return _crc(self.keys.narrow(2, host_row, rows), self.values.narrow(2, host_row, rows))


def page_crc(pool: PagePool, page: int, rows: int) -> int:
    """Checksum of the first `rows` rows of a page: equal to `HostPool.crc` of the same rows."""
    return _crc(pool.keys[:, :, page, :rows], pool.values[:, :, page, :rows])


def clear_tail(pool: PagePool, page: int, rows: int) -> None:
    """Zero what lies behind the first `rows` rows of a page, on all layers."""
    pool.keys[:, :, page, rows:].zero_()
    pool.values[:, :, page, rows:].zero_()


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
