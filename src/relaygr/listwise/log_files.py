"""Numbered files of lines in a folder: appended to, bounded, shared by processes, whole after a kill.

Every process writes to files of its own. Lines go to the operating system with each call and to the disk when
a file is full, so that a kill of the process loses nothing that was written, and a loss of power the last
minutes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relaygr.core.errors import BackendError

PREFIX, SUFFIX = "lists-", ".jsonl"


def log_files(folder: Path) -> list[Path]:
    """The files of a log, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*{SUFFIX}") if _number(path) is not None]
    return sorted(found, key=lambda path: _number(path) or 0)


def _number(path: Path) -> int | None:
    digits = path.stem.removeprefix(PREFIX)
    return int(digits) if digits.isdecimal() else None


class LogFiles:
    """Appends to the newest file of this process; not for two threads at once.

    A file that has `file_bytes` is full; the oldest of the folder, whoever wrote them, are deleted so that
    all stay within `total_bytes`, but for one call's lines. Files may be moved away at any time, and the
    folder may be made anew.

    Args:
        header: name and content of the file that readers need first; written wherever it is missing, and
            left as it is where it is not.

    Raises:
        BackendError: nothing can be written there.
    """

    def __init__(
        self, folder: Path, file_bytes: int, total_bytes: int, header: tuple[str, bytes] | None = None
    ) -> None:
        self._folder, self._file_bytes, self._total = folder, file_bytes, total_bytes
        self._header = header
        self._path: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            self._restore()
        except OSError as error:
            raise BackendError(f"cannot write {folder}: {error.strerror or error}") from error

    def append(self, lines: Sequence[bytes]) -> None:
        """Append whole lines, all or none.

        Raises:
            BackendError: the file system refuses; the next call tries anew.
        """
        try:
            self._restore()
            path = self._path or self._claim()
        except OSError as error:
            raise BackendError(f"cannot write {self._folder}: {error.strerror or error}") from error
        before = 0
        try:
            with path.open("ab") as file:
                before = file.tell()
                file.writelines(lines)
                file.flush()
                full = file.tell() >= self._file_bytes
                if full:
                    os.fsync(file.fileno())
        except OSError as error:
            self._path = _cut(path, before)
            raise BackendError(f"cannot write {path}: {error.strerror or error}") from error
        self._path = None if full else path

    def _restore(self) -> None:
        """Write the header if it is not there."""
        if self._header is None:
            return
        name, content = self._header
        path = self._folder / name
        if path.exists():
            return
        # Another process may do the same.
        temporary = path.with_name(f"{name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        os.replace(temporary, path)

    def _claim(self) -> Path:
        """An empty file that no other process has; room is made for it."""
        files = log_files(self._folder)
        number = (_number(files[-1]) or 0) if files else 0
        while True:
            number += 1
            path = self._folder / f"{PREFIX}{number}{SUFFIX}"
            try:
                path.open("xb").close()
            except FileExistsError:
                continue
            break
        self._prune(files)
        return path

    def _prune(self, files: Sequence[Path]) -> None:
        kept = 0
        for path in reversed(files):
            try:
                kept += path.stat().st_size
            except FileNotFoundError:  # moved away, or deleted by another process
                continue
            if kept > self._total - self._file_bytes:
                path.unlink(missing_ok=True)


def _cut(path: Path, size: int) -> Path | None:
    """Take back what a failed call left; None if that failed as well, so that its end stays the file's."""
    try:
        if not size:
            path.unlink(missing_ok=True)
            return None
        os.truncate(path, size)
    except OSError:
        return None
    return path
