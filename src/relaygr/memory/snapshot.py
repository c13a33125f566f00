"""A file with everything of the host tier: written in one piece, and read in one piece or not at all.

It is a header and then, one behind the other, states: sizes, whose it is, its bytes, a checksum over these.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from relaygr.cache.interface import HostRun
from relaygr.memory.disk import sync_folder
from relaygr.memory.disk_record import Meta, decode, encode
from relaygr.memory.host import HostPool

MAGIC = b"RGRSNAP\x01"
FORMAT_VERSION = 1
_LENGTH_AND_CRC = struct.Struct("<II")
_SIZES = struct.Struct("<IQ")
_CRC = struct.Struct("<I")
_HEADER_MAX = 1 << 20


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same where a snapshot is read: otherwise its bytes would mean something else.

    Attributes:
        schema: of the features; scales: how numbers are quantised.
        shapes: per layer heads, qk_dim, v_dim.
        entries: states behind the header.
    """

    version: int = FORMAT_VERSION
    model_fp: bytes
    schema: int
    layout_id: str
    dtype: str
    scales: str
    page_tokens: int
    chunk_tokens: int
    shapes: list[tuple[int, int, int]]
    entries: int


class State(NamedTuple):
    """One state and where it lies in host memory."""

    meta: Meta
    runs: tuple[HostRun, ...]


class BadSnapshotError(ValueError):
    """Nothing of the file may be used; the text says why."""


def unfinished(path: Path) -> Path:
    """The file that becomes `path` when it is whole."""
    return path.with_name(path.name + ".new")


def is_snapshot(path: Path) -> bool:
    """Whether a file there begins like a snapshot of this format. Raises: OSError."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def write_snapshot(path: Path, header: SnapshotHeader, states: Iterable[State], host: HostPool) -> int:
    """Replace `path` as a whole, also if the machine goes down meanwhile; returns the bytes written.

    Raises: OSError, and then `path` is what it was; FileExistsError for a file that is no snapshot.
    """
    fresh = unfinished(path)
    if path.exists() and not is_snapshot(path):
        raise FileExistsError(f"{path} is no snapshot, and is left alone")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            data = msgspec.msgpack.encode(header)
            file.write(MAGIC + _LENGTH_AND_CRC.pack(len(data), zlib.crc32(data)) + data)
            for state in states:
                _write_state(file, state, host)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    return size


class SnapshotReader:
    """States one by one; what was read counts only when the last has been, and nothing was raised.

    Raises: BadSnapshotError for a file that is not what was written, or not of `expected`; OSError.
    """

    def __init__(self, file: BinaryIO, expected: SnapshotHeader, host: HostPool) -> None:
        """`expected.entries` does not matter."""
        self._file, self._host = file, host
        if self._read(len(MAGIC)) != MAGIC:
            raise BadSnapshotError("it is no snapshot of this format")
        length, crc = _LENGTH_AND_CRC.unpack(self._read(_LENGTH_AND_CRC.size))
        data = self._read(min(length, _HEADER_MAX))
        if zlib.crc32(data) != crc:
            raise BadSnapshotError("its header is damaged")
        try:
            header = msgspec.msgpack.decode(data, type=SnapshotHeader)
        except msgspec.MsgspecError as error:
            raise BadSnapshotError("its header is of another version") from error
        for name in SnapshotHeader.__struct_fields__:
            mine, theirs = getattr(expected, name), getattr(header, name)
            if name != "entries" and mine != theirs:
                raise BadSnapshotError(f"{name}: {_shown(theirs)}, here {_shown(mine)}")
        self.entries = header.entries

    def states(self) -> Iterator[tuple[Meta, bytearray]]:
        """Each with its bytes; to the very end of the file."""
        for _ in range(self.entries):
            yield self._state()
        if self._file.read(1):
            raise BadSnapshotError("it has more states than it says")

    def _state(self) -> tuple[Meta, bytearray]:
        sizes = self._read(_SIZES.size)
        meta_bytes, data_bytes = _SIZES.unpack(sizes)
        if meta_bytes + data_bytes > self._left():
            raise BadSnapshotError("it is cut short")
        packed, data = self._read(meta_bytes), self._read(data_bytes)
        crc = zlib.crc32(data, zlib.crc32(packed, zlib.crc32(sizes)))
        if _CRC.unpack(self._read(_CRC.size)) != (crc,):
            raise BadSnapshotError("a state in it is damaged")
        meta = decode(packed)
        if meta is None or data_bytes != self._host.raw_bytes(meta.ref.tokens):
            raise BadSnapshotError("a state in it has another size than its content")
        return meta, data

    def _left(self) -> int:
        return os.fstat(self._file.fileno()).st_size - self._file.tell()

    def _read(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        if self._file.readinto(data) != nbytes:  # type: ignore[attr-defined]
            raise BadSnapshotError("it is cut short")
        return data


def _write_state(file: BinaryIO, state: State, host: HostPool) -> None:
    packed, data_bytes = encode(state.meta), host.raw_bytes(state.meta.ref.tokens)
    sizes = _SIZES.pack(len(packed), data_bytes)
    crc = zlib.crc32(packed, zlib.crc32(sizes))
    file.write(sizes + packed)
    for row, rows in pages(state.runs, host.layout.page_tokens):
        data = host.raw(row, rows)
        crc = zlib.crc32(data, crc)
        file.write(data)
    file.write(_CRC.pack(crc))


def pages(runs: tuple[HostRun, ...], page_tokens: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each page; none spans two runs, so that other runs hold the same bytes."""
    for run in runs:
        for first in range(0, run.tokens, page_tokens):
            yield run.offset + first, min(page_tokens, run.tokens - first)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
