"""A folder whose files are replaced all at once: a kill leaves those of before or of after, never a mix.

The folder's entries are links through `.current`, itself a link to `.set-X`, where the files are. A new set
is written beside the old one, and becomes the current one by one rename.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from relaygr.core.errors import BackendError, ConfigError

_CURRENT, _SET, _LOCK = ".current", ".set-", ".lock"


@contextmanager
def replaced(out: Path, names: Collection[str]) -> Iterator[Path]:
    """An empty folder; what the block puts into it is what `out` holds afterwards.

    Where the block raises, or the process is killed, `out` holds what it held. Entries that are not of a set
    are left alone.

    Args:
        names: what the set may hold.

    Raises:
        ConfigError: an entry of such a name is not of an earlier set, or another process writes into `out`.
        BackendError: the file system refuses.
    """
    with _told(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / _LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(str(out), "another training writes into it") from None
        for name in names:
            if os.path.lexists(out / name) and not _linked(out, name):
                raise ConfigError(
                    str(out / name), "is not of an earlier training; remove it, or choose another folder"
                )
        with _told(out):
            _sweep(out)
            fresh = Path(tempfile.mkdtemp(prefix=_SET, dir=out))
            fresh.chmod(0o755)  # a server may be another user
        try:
            yield fresh
            with _told(out):
                _swap(out, fresh)
        finally:
            with _told(out):
                _sweep(out)


def check_not_inside(option: str, path: Path | None, out: Path) -> None:
    """Raise ConfigError where a path that is read is of the set in `out` that goes away."""
    if path is None:
        return
    inside = path.resolve()
    if any(each.parent == out.resolve() and each.name.startswith(_SET) for each in (inside, *inside.parents)):
        raise ConfigError(option, f"{path} is of the set in {out} that is replaced; choose another folder")


def _swap(out: Path, fresh: Path) -> None:
    for entry in sorted(fresh.iterdir()):
        if not _linked(out, entry.name):
            os.symlink(f"{_CURRENT}/{entry.name}", out / entry.name)
    arrow = out / f"{_CURRENT}.new"
    arrow.unlink(missing_ok=True)
    os.symlink(fresh.name, arrow)
    os.replace(arrow, out / _CURRENT)


def _sweep(out: Path) -> None:
    """Remove sets that are not current, and links to what the current one lacks."""
    current = os.readlink(out / _CURRENT) if (out / _CURRENT).is_symlink() else ""
    for entry in sorted(out.iterdir()):
        if entry.name.startswith(_SET) and entry.name != current:
            shutil.rmtree(entry, ignore_errors=True)
        elif _linked(out, entry.name) and not entry.exists():
            entry.unlink(missing_ok=True)


def _linked(out: Path, name: str) -> bool:
    path = out / name
    return path.is_symlink() and os.readlink(path) == f"{_CURRENT}/{name}"


@contextmanager
def _told(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackendError(f"cannot write {out}: {error.strerror or error}") from error
