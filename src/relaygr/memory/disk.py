"""Segment files: records are written behind one another and never changed, whole files are removed.

Nothing here is synced: what the system had not written when the machine went down is a record whose
checksum does not match, and that is a miss. What must not be lost is in `disk_forgotten`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relaygr.cache.disk_entry import DiskEntry, FoundSegment, Place
from relaygr.memory.disk_record import ALIGN, HEADER_BYTES, MAGIC, Header, Kind, decode, unpack

_NAME = re.compile(r"(\d{12})\.seg")
_SEARCHED_BYTES = 1 << 20


class SegmentFiles:
    """The files of one folder; belongs to one thread at a time.

    Changes: only the bytes and files named.
    Raises: OSError, as the system gives it. Reading behind the end gives fewer bytes, and no error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, int] = {}

    def write(self, segment: int, offset: int, data: bytes | memoryview) -> None:
        file, view = self._file(segment), memoryview(data)
        while view:
            done = os.pwrite(file, view, offset)
            view, offset = view[done:], offset + done

    def read(self, segment: int, offset: int, nbytes: int) -> bytearray:
        file, data, done = self._file(segment), bytearray(nbytes), 0
        view = memoryview(data)
        while done < nbytes:
            got = os.preadv(file, [view[done:]], offset + done)
            if not got:
                break
            done += got
        view.release()
        del data[done:]
        return data

    def size(self, segment: int) -> int:
        return os.fstat(self._file(segment)).st_size

    def remove(self, segment: int) -> None:
        """One that is not there is no matter."""
        file = self._files.pop(segment, None)
        if file is not None:
            os.close(file)
        self._path(segment).unlink(missing_ok=True)

    def sync_folder(self) -> None:
        """What was removed stays so."""
        sync_folder(self._folder)

    def numbers(self) -> list[int]:
        """Of the segments that are there, ascending."""
        found = (_NAME.fullmatch(name) for name in os.listdir(self._folder))
        return sorted(int(match[1]) for match in found if match is not None)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:012}.seg"

    def _file(self, segment: int) -> int:
        file = self._files.get(segment)
        if file is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            file = self._files[segment] = os.open(self._path(segment), flags, 0o600)
        return file


class RecordWriter:
    """One record: `begin`, `add` until all its bytes are there, `commit`. Until then nobody reads it.

    Raises: OSError; ValueError if it is committed with too few bytes, or given too many.
    """

    def __init__(self, files: SegmentFiles, place: Place, number: int, meta: bytes, data_bytes: int) -> None:
        self._files, self._place, self._meta = files, place, meta
        self._header = Header(Kind.PENDING, number, len(meta), zlib.crc32(meta), data_bytes, 0)
        self._done = self._crc = 0

    def begin(self) -> None:
        """From now on a reader of the whole file can step over it."""
        self._files.write(self._place.segment, self._place.offset, self._header.pack() + self._meta)

    def add(self, data: bytes) -> None:
        if self._done + len(data) > self._header.data_bytes:
            raise ValueError(f"data: {self._done + len(data)} bytes, limit {self._header.data_bytes}")
        at = self._place.offset + self._header.data_at + self._done
        self._files.write(self._place.segment, at, data)
        self._done += len(data)
        self._crc = zlib.crc32(data, self._crc)

    def commit(self) -> None:
        if self._done != self._header.data_bytes:
            raise ValueError(f"data: {self._done} bytes, {self._header.data_bytes} were announced")
        header = self._header._replace(kind=Kind.ENTRY, data_crc=self._crc)
        self._files.write(self._place.segment, self._place.offset, header.pack())


class RecordReader:
    """The data of one record, front to back; good only if `whole` says so after the last of it.

    "No" is None from `read`: the record is not the one that was written.
    Raises: OSError.
    """

    def __init__(self, files: SegmentFiles, place: Place, number: int, data_bytes: int) -> None:
        self._files, self._place, self._number = files, place, number
        self._data_bytes, self._done, self._crc = data_bytes, 0, 0
        self._header: Header | None = None

    def read(self, nbytes: int) -> bytearray | None:
        if self._header is None:
            head = self._files.read(self._place.segment, self._place.offset, HEADER_BYTES)
            header = unpack(bytes(head))
            if header is None or not self._expected(header):
                return None
            self._header = header
        at = self._place.offset + self._header.data_at + self._done
        data = self._files.read(self._place.segment, at, nbytes)
        self._done += len(data)
        self._crc = zlib.crc32(data, self._crc)
        return data if len(data) == nbytes else None

    @property
    def whole(self) -> bool:
        """Whether all of it was read, and is what was written."""
        header = self._header
        return header is not None and self._done == header.data_bytes and self._crc == header.data_crc

    def _expected(self, header: Header) -> bool:
        found = header.kind, header.number, header.data_bytes
        return found == (Kind.ENTRY, self._number, self._data_bytes)


class Found(NamedTuple):
    """A segment of an earlier process; `torn`: records not finished, `damaged`: what cannot be read."""

    segment: FoundSegment
    torn: int
    damaged: int


def scan(files: SegmentFiles, segment: int) -> Found:
    """What of a file is whole, as far as headers tell; the data are checked when they are read.

    Raises OSError.
    """
    size, at = files.size(segment), 0
    entries: list[DiskEntry] = []
    torn = damaged = 0
    while at < size:
        header = unpack(bytes(files.read(segment, at, HEADER_BYTES)))
        if header is None:
            behind = _next_header(files, segment, at + ALIGN, size)
            damaged += behind < size  # up to the end it is what a write left behind that did not finish
            torn += behind >= size
            at = behind
            continue
        if header.kind == Kind.PENDING or at + header.end > size:
            torn += 1
        elif (entry := _entry(files, segment, at, header)) is not None:
            entries.append(entry)
        else:
            damaged += 1
        at += header.nbytes
    return Found(FoundSegment(segment, max(size, at), tuple(entries)), torn, damaged)


def sync_folder(folder: Path) -> None:
    """Names that were made, replaced or removed in it stay so when the machine goes down."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _entry(files: SegmentFiles, segment: int, at: int, header: Header) -> DiskEntry | None:
    data = files.read(segment, at + header.meta_at, header.meta_bytes)
    meta = decode(data) if zlib.crc32(data) == header.meta_crc else None
    if meta is None:
        return None
    place = Place(segment, at, header.nbytes)
    return DiskEntry(meta.ref, place, header.number, meta.layout_id, meta.sums)


def _next_header(files: SegmentFiles, segment: int, at: int, size: int) -> int:
    """Where the next whole header begins at or behind `at`; `size` if there is none."""
    for place in _candidates(files, segment, at, size):
        if unpack(bytes(files.read(segment, place, HEADER_BYTES))) is not None:
            return place
    return size


def _candidates(files: SegmentFiles, segment: int, at: int, size: int) -> Iterator[int]:
    while at < size:
        data = files.read(segment, at, _SEARCHED_BYTES)
        found = data.find(MAGIC)
        while found >= 0:
            if found % ALIGN == 0:
                yield at + found
            found = data.find(MAGIC, found + 1)
        at += _SEARCHED_BYTES
