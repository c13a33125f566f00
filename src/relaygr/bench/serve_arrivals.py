"""When visits arrive: a Poisson process, or the gaps of a trace scaled to a rate."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, cast

from relaygr.bench.serve_spec import POISSON, LoadSpec
from relaygr.core.errors import ConfigError, DataError

COLUMN = "TIMESTAMP"
MAX_ROWS = 5_000_000
_EPOCH = datetime(1970, 1, 1)


def arrivals(spec: LoadSpec) -> Iterator[float]:
    """Seconds from the start, increasing, without end; equal specs give equal arrivals.

    Raises:
        DataError, ConfigError: as `trace_gaps`.
    """
    rng = random.Random(spec.seed)
    if spec.arrivals == POISSON:
        gaps: Iterator[float] = (rng.expovariate(spec.rate) for _ in itertools.count())
        return itertools.accumulate(gaps)
    trace = trace_gaps(Path(spec.arrivals))
    return itertools.accumulate(_scaled(trace, spec.rate, rng.randrange(len(trace))))


def _scaled(gaps: Sequence[float], rate: float, first: int) -> Iterator[float]:
    """The gaps from number `first` on, round and round, with a mean of 1 / `rate`."""
    factor = len(gaps) / sum(gaps) / rate
    for place in itertools.count(first):
        yield gaps[place % len(gaps)] * factor


def trace_gaps(file: Path) -> list[float]:
    """Seconds between the rows of a CSV file, plain or gzip, by its column TIMESTAMP.

    Times are dates as `2023-11-16 18:15:46.6805900` or numbers of seconds.

    Raises:
        DataError: naming file, line and column, for a time that cannot be read or goes back.
        ConfigError: the file cannot be read, or holds fewer than two different times or too many rows.
    """
    gaps: list[float] = []
    before: float | None = None
    try:
        with _open(file) as stream:
            rows = csv.DictReader(stream)
            if COLUMN not in (rows.fieldnames or ()):
                raise DataError(str(file), 1, COLUMN, f"is missing among {rows.fieldnames or 'no columns'}")
            for row in rows:
                now = _seconds(file, rows.line_num, row[COLUMN])
                if before is not None:
                    gaps.append(now - before)
                    if gaps[-1] < 0:
                        raise DataError(str(file), rows.line_num, COLUMN, "is before the row in front of it")
                    if len(gaps) > MAX_ROWS:
                        raise ConfigError("--arrivals", f"{file} has more than {MAX_ROWS} rows")
                before = now
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("--arrivals", f"{file} cannot be read: {error}") from error
    if not gaps or sum(gaps) <= 0:
        raise ConfigError("--arrivals", f"{file} holds fewer than two different times")
    return gaps


@contextmanager
def _open(file: Path) -> Iterator[IO[str]]:
    with file.open("rb") as stream:
        zipped = stream.peek(1).startswith(b"\x1f")
        binary = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
        with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
            yield text


def _seconds(file: Path, line: int, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        pass
    try:
        # A zone shifts all times alike, and only gaps count.
        return (datetime.fromisoformat(text or "").replace(tzinfo=None) - _EPOCH).total_seconds()
    except ValueError as error:
        raise DataError(str(file), line, COLUMN, f"{text!r} is no time") from error
