"""Read a trace from whatever it is in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from relaygr.core.errors import ConfigError, DataError
from relaygr.sim.cache.events import Visits, read_csv, read_dataset, read_kuairand
from relaygr.sim.cache.requests import UNREADABLE, open_zipped, read_requests
from relaygr.sim.cache.trace import Trace

Format = Literal["auto", "requests", "kuairand", "csv", "dataset"]


def read_trace(files: Sequence[Path], form: Format, visits: Visits) -> Trace:
    """Read one trace; event logs may be in several files.

    Args:
        form: `requests` is our own, a request a line; the others are events. `auto` goes by the file: a
            folder is a dataset, a header makes the difference between KuaiRand and other CSV.

    Raises:
        ConfigError: there is no file, or there are several where there can be only one.
        DataError: as the format's reader says it.
    """
    if not files:
        raise ConfigError("--trace", "no file is given")
    found = _form(files[0]) if form == "auto" else form
    if found in ("requests", "dataset") and len(files) > 1:
        raise ConfigError("--trace", f"{len(files)} are given, a trace of {found} is one")
    if found == "requests":
        return read_requests(files[0])
    if found == "dataset":
        return read_dataset(files[0], visits)
    return read_kuairand(files, visits) if found == "kuairand" else read_csv(files, visits)


def _form(file: Path) -> Format:
    if file.is_dir():
        return "dataset"
    try:
        with open_zipped(file) as stream:
            head = stream.readline(1 << 16).lstrip(b"\xef\xbb\xbf \t\r\n")
    except UNREADABLE as error:
        raise DataError(str(file), 0, "", getattr(error, "strerror", None) or str(error)) from error
    if head.startswith(b"{"):
        return "requests"
    return "kuairand" if b"time_ms" in head else "csv"
