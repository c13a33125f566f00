"""Who was forgotten, in two copies: a line in either is enough for the user's records to stay dead."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from relaygr.cache.disk_entry import Owner
from relaygr.memory.disk import sync_folder

log = logging.getLogger("relaygr.memory")

COPIES = ("forgotten.a", "forgotten.b")


class ForgottenLog:
    """Tombstones: `checksum owner number`, one a line; owners by digest, so that no name stays behind.

    Changes: `add` and `rewrite` return when what they wrote survives the end of the machine.
    Raises: OSError if neither copy could be written; one is enough.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self.lines = 0
        for name in COPIES:
            with contextlib.suppress(FileNotFoundError):
                self._read((folder / name).read_bytes())

    @property
    def latest(self) -> int:
        return max(self._numbers.values(), default=0)

    def of(self, owner: Owner) -> int:
        return self._numbers.get(_digest(owner), 0)

    def add(self, owner: Owner, number: int) -> None:
        line, failed = _line(_digest(owner), number), None
        kept = 0
        for name in COPIES:
            try:
                self._append(self._folder / name, line)
                kept += 1
            except OSError as error:
                failed = error
        if failed is not None:
            if not kept:
                raise failed
            log.warning("a copy of who was forgotten could not be written: %s", failed)
        self.lines += 1

    def rewrite(self, needed: Mapping[Owner, int]) -> None:
        """Keep only these. One copy after the other, so that a whole one is there at any time."""
        data = b"".join(_line(_digest(owner), number) for owner, number in needed.items())
        for name in COPIES:
            fresh = self._folder / f"{name}.new"
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write(file, data)
                os.fsync(file)
            finally:
                os.close(file)
            fresh.replace(self._folder / name)
            sync_folder(self._folder)
        self.lines = len(needed)

    def _append(self, path: Path, line: bytes) -> None:
        made = not path.exists()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write(file, b"\n" + line)  # an unfinished line before it must not take it along
            os.fsync(file)
        finally:
            os.close(file)
        if made:
            sync_folder(self._folder)

    def _read(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            crc, _, rest = line.partition(b" ")
            if not rest or crc != b"%08x" % zlib.crc32(rest):
                continue
            digest, _, number = rest.decode().partition(" ")
            self._numbers[digest] = max(int(number), self._numbers.get(digest, 0))
            self.lines += 1


def _digest(owner: Owner) -> str:
    both = b"".join(len(name.encode()).to_bytes(4, "little") + name.encode() for name in owner)
    return hashlib.blake2b(both, digest_size=16).hexdigest()


def _line(digest: str, number: int) -> bytes:
    rest = f"{digest} {number}".encode()
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
