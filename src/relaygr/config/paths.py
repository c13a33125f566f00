"""Checks of output paths that cost nothing, so that a bad one fails before the work and not after it."""

from __future__ import annotations

import os
from pathlib import Path

from relaygr.core.errors import ConfigError


def check_file(option: str, file: Path | None) -> None:
    """Raise ConfigError, naming `option`, when `file` cannot be created or overwritten; None is fine."""
    if file is None:
        return
    place = _nearest(option, file)
    if place != file:
        _check_entry(option, file, place)
    elif place.is_dir():
        raise ConfigError(option, f"{file} is a folder")
    elif not os.access(place, os.W_OK):
        raise ConfigError(option, f"{file} cannot be written: no permission")


def check_folder(option: str, folder: Path) -> None:
    """Raise ConfigError, naming `option`, when `folder` cannot be created or nothing can be put into it."""
    place = _nearest(option, folder)
    if place == folder and not place.is_dir():
        raise ConfigError(option, f"{folder} is a file")
    _check_entry(option, folder, place)


def _nearest(option: str, path: Path) -> Path:
    """The path itself or the nearest folder above it that exists."""
    try:
        for place in (path, *path.parents):
            if place.exists():
                return place
    except OSError as error:
        raise ConfigError(option, f"{path} cannot be used: {error.strerror}") from error
    raise ConfigError(option, f"{path} cannot be used: the working folder is gone")


def _check_entry(option: str, path: Path, place: Path) -> None:
    if not place.is_dir():
        raise ConfigError(option, f"{path} cannot be made: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(option, f"{path} cannot be made: no permission to write to {place}")
