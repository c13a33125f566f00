"""The folder of the disk tier: one process at a time, one model and layout at a time."""

from __future__ import annotations

import fcntl
import os
import re
import zlib
from pathlib import Path

from relaygr.core.ids import Fingerprint
from relaygr.memory.disk import sync_folder

_LOCK = "lock"
_STATES = re.compile(r"[0-9a-f]*-[0-9a-f]{8}")
_FILES = re.compile(r"\d{12}\.seg|forgotten\.[ab](\.new)?")


class DiskFolder:
    """Locked from when it is made until `close`.

    Raises: OSError if it cannot be made, written to or locked; BlockingIOError if another process has it.
    """

    def __init__(self, path: Path, model_fp: Fingerprint, layout_id: str) -> None:
        self._root = path
        self.path = path / f"{model_fp.hex()}-{zlib.crc32(layout_id.encode()):08x}"
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path.mkdir(exist_ok=True)
        except OSError:
            self.close()
            raise

    def clear(self, keep_own: bool) -> None:
        """Remove what other models and layouts left, and without `keep_own` all; only files that are ours."""
        for folder in self._root.iterdir():
            if not _STATES.fullmatch(folder.name) or (keep_own and folder == self.path):
                continue
            for file in folder.iterdir():
                if _FILES.fullmatch(file.name):
                    file.unlink()
            if folder != self.path:
                folder.rmdir()
        sync_folder(self.path)
        sync_folder(self._root)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1
