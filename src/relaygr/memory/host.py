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
    """`rows` tokens of an entry from token `token` on, adjacent in the pool and adjacent in host memory."""

    token: int
    rows: int
    device_row: int
    host_row: int


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

    def store(self, pool: PagePool, piece: Piece) -> None:
        """Pool to host: one copy of keys and one of values, on all layers and heads at once."""
        _, rows, device_row, host_row = piece
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            source = theirs.flatten(2, 3).narrow(2, device_row, rows)
            self.format.encode(source, mine.narrow(2, host_row, rows))

    def load(self, pool: PagePool, piece: Piece) -> None:
        """Host to pool: one copy of keys and one of values, on all layers and heads at once."""
        _, rows, device_row, host_row = piece
        for mine, theirs in ((self.keys, pool.keys), (self.values, pool.values)):
            target = theirs.flatten(2, 3).narrow(2, device_row, rows)
            self.format.decode(mine.narrow(2, host_row, rows), target)

    def crc(self, host_row: int, rows: int) -> int:
        """Checksum of `rows` rows of host memory, over all layers and heads."""
        return _crc(self.keys.narrow(2, host_row, rows), self.values.narrow(2, host_row, rows))


def page_crc(pool: PagePool, page: int, rows: int) -> int:
    """Checksum of the first `rows` rows of a page: equal to an exact `HostPool`'s `crc` of the same rows."""
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
