"""Text files whose lines are fields between separators, and the header that names the fields."""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

from relaygr.data.readers.fields import BadField
from relaygr.data.readers.text import Lines, Records


def csv_records(lines: Lines, first: str) -> tuple[list[str], Records]:
    """The header in the line `first`, which was taken from `lines`, and the records of CSV behind it.

    Raises:
        DataError: the header is not CSV.
    """
    try:
        header = next(csv.reader(chain([first], lines), strict=True))
    except csv.Error as error:
        raise lines.broken(f"malformed header: {error}") from error
    except BadField as error:
        raise lines.broken(str(error)) from error
    return header, csv.reader(lines, strict=True)


def split_by(separator: str) -> Callable[[str], list[str]]:
    """What cuts a line at every `separator`, quotes being letters like others; a blank line has no fields."""

    def split(line: str) -> list[str]:
        line = line.rstrip("\r\n")
        return line.split(separator) if line else []

    return split


def first_line(lines: Lines) -> str:
    """The line that says what the file is; DataError when there is none."""
    line = next(lines, None)
    if line is None:
        lines.number = 1
        raise lines.broken("empty file, expected a header")
    return line


def check_header(lines: Lines, header: Sequence[str], columns: Sequence[str]) -> None:
    """Raise DataError unless the names in `header` are unique and `columns` are among them."""
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise lines.broken("stands more than once in the header", twice[0])
    for name in columns:
        if name not in header:
            near = difflib.get_close_matches(name, header[:256], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            found = ", ".join(repr(column[:64]) for column in header[:16])
            raise lines.broken(f"missing column; the header has {found}{hint}", name)
