"""Put a new folder in the place of an old one: a reader sees the old, the new or, for a moment, none."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

# Names are up to 255 bytes, and a process adds a mark of its own while it writes.
MAX_FOLDER_NAME_BYTES = 224


def replace_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into an empty folder and move that to `target`; what was there is removed.

    Whatever fails, `target` is as it was. Whether it may be replaced at all is for the caller to say.

    Raises:
        OSError: the file system refused.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target, "new")
    token = f"{os.getpid()}-{secrets.token_hex(4)}"
    fresh = target.with_name(f".{target.name}.{token}.new")
    stale = target.with_name(f".{target.name}.{token}.old")
    fresh.mkdir()
    try:
        fill(fresh)
        if target.exists():
            target.rename(stale)
        fresh.rename(target)
        # Not before, because what a killed process moved away may be the only one left.
        _remove_left(target, "old")
    finally:
        # After a failure between the two renames the old folder goes back to its place.
        if stale.exists() and not target.exists():
            stale.rename(target)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(stale, ignore_errors=True)


def _remove_left(target: Path, kind: str) -> None:
    """Remove what processes that were killed while they wrote `target` left beside it."""
    form = re.compile(rf"\.{re.escape(target.name)}\.([1-9][0-9]{{0,8}})-[0-9a-f]{{8}}\.{kind}", re.DOTALL)
    for beside in target.parent.iterdir():
        found = form.fullmatch(beside.name)
        if found is not None and not _lives(int(found[1])):
            shutil.rmtree(beside, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True
