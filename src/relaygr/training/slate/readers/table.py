"""Columns of numbers from delimited text, read strictly and kept compactly."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np

from relaygr.core.errors import DataError
from relaygr.data.readers.delimited import check_header
from relaygr.data.readers.fields import BadField, read_integer
from relaygr.data.readers.text import Lines
from relaygr.listwise.arrays import Float64, Int64
from relaygr.listwise.pool import MISSING

Read = Callable[[str], float]


def read_columns(path: Path, columns: Mapping[str, Read], delimiter: str = ",") -> dict[str, Float64]:
    """Some columns of a text file with a header, gzip or not; one row a line.

    Args:
        columns: name -> what reads a field, or raises BadField.

    Returns:
        float64 [rows] each, integers exact up to 2**53.

    Raises:
        DataError: with file, line, column and reason.
    """
    kept = {name: array("d") for name in columns}
    lines: Lines | None = None
    try:
        with _open(path) as stream:
            lines = Lines(str(path), stream)
            records = csv.reader(_each(lines), delimiter=delimiter, strict=True)
            header = next(records, None)
            if header is None:
                raise lines.broken("empty file, expected a header")
            check_header(lines, header, list(columns))
            wanted = [(name, header.index(name), read, kept[name].append) for name, read in columns.items()]
            for row in records:
                if not row:
                    continue
                if len(row) != len(header):
                    raise lines.broken(f"{len(row)} fields, expected {len(header)}")
                for name, at, read, add in wanted:
                    try:
                        add(read(row[at]))
                    except BadField as error:
                        raise lines.broken(str(error), name) from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            str(path), 0 if lines is None else lines.number, "", f"cannot be read: {error}"
        ) from error
    return {name: np.frombuffer(values, dtype=np.float64) for name, values in kept.items()}


def _each(lines: Lines) -> Iterator[str]:
    for line in lines:
        lines.taken = False
        yield line


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as stream:
        zipped = stream.peek(1).startswith(b"\x1f")
        binary = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
        with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
            yield text


def integer_or_missing(text: str) -> float:
    """An integer, rounded ones such as 12.0 too; -1 for an empty field or NULL."""
    if text.strip().upper() in ("", "NULL", "NAN", "UNKNOWN"):
        return float(MISSING)
    return float(read_integer(text.strip().removesuffix(".0")))


def integers(values: Float64) -> Int64:
    found: Int64 = values.astype(np.int64)
    return found


def joined(keys: Int64, of: Int64, values: Int64) -> Int64:
    """values[i] where of[i] == key, for each key; -1 where there is none. [n]"""
    if not len(of):
        return np.full(len(keys), MISSING, dtype=np.int64)
    order = np.argsort(of, kind="stable")
    places = np.minimum(np.searchsorted(of[order], keys), len(of) - 1)
    found = order[places]
    matched: Int64 = np.where(of[found] == keys, values[found], MISSING)
    return matched
