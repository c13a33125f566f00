"""The files of the disk tier as a process finds them when it starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from relaygr.cache.disk import DiskBooks
from relaygr.config.host import HostConfig
from relaygr.core.ids import Fingerprint
from relaygr.memory.disk import SegmentFiles, scan
from relaygr.memory.disk_folder import DiskFolder
from relaygr.memory.disk_forgotten import ForgottenLog

log = logging.getLogger("relaygr.engine")


@dataclass(frozen=True, slots=True)
class Opened:
    """A locked folder, what is in it, and the books of that.

    Attributes:
        torn, damaged: records that were not finished, and what cannot be read.
    """

    folder: DiskFolder
    files: SegmentFiles
    forgotten: ForgottenLog
    books: DiskBooks
    torn: int
    damaged: int


def open_files(config: HostConfig, model_fp: Fingerprint, layout_id: str, fresh: bool) -> Opened | None:
    """What an earlier process left for this model and layout, nothing with `fresh`; everything else there is
    removed. None, with a logged reason, if the folder cannot be used.
    """
    folder = None
    try:
        folder = DiskFolder(Path(config.disk_path), model_fp, layout_id)
        folder.clear(keep_own=not fresh)
        files, forgotten = SegmentFiles(folder.path), ForgottenLog(folder.path)
        found = [scan(files, number) for number in files.numbers()]
    except OSError as error:
        why = (
            "is in use by another process"
            if isinstance(error, BlockingIOError)
            else f"cannot be used: {error}"
        )
        log.warning("no disk tier: host.disk_path: %r %s", config.disk_path, why)
        if folder is not None:
            folder.close()
        return None
    books = DiskBooks(config.disk_bytes, config.disk_index_bytes, layout_id)
    books.recover((one.segment for one in found), forgotten)
    torn, damaged = sum(one.torn for one in found), sum(one.damaged for one in found)
    what = "disk tier: %d states in %s, %d records not finished, %d damaged"
    log.info(what, len(books), folder.path, torn, damaged)
    return Opened(folder, files, forgotten, books, torn, damaged)
