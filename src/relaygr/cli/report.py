"""Write the report of a command to the file of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from relaygr.core.errors import ConfigError


def write_json(
    file: Path | None, report: msgspec.Struct | Mapping[str, object], option: str = "--json"
) -> None:
    """Write `report` and make the folders above it; ConfigError when that fails. None writes nothing."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(option, f"{file} cannot be written: {error.strerror}") from error
