"""Read events from CSV or gzipped CSV, strictly, holding no Python object per row."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from relaygr.core.errors import DataError
from relaygr.data.fields import BadField, Reason
from relaygr.data.rows import CsvOptions, Rows
from relaygr.data.write import EventTable

__all__ = ["CsvEvents", "CsvOptions", "Skipped", "read_csv"]

MAX_LINE_CHARS = 1 << 20
PROGRESS_ROWS = 1 << 16

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Skipped:
    """How many rows were left out for one reason."""

    reason: Reason
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class CsvEvents:
    """The events of a file in file order, users in order of first appearance, and what was left out."""

    table: EventTable
    skipped: tuple[Skipped, ...]


def read_csv(
    path: Path | str, options: CsvOptions | None = None, progress: Progress | None = None
) -> CsvEvents:
    """Read a CSV file with a header; gzip is recognised by its first byte, a byte order mark is dropped.

    A row is one line: a quoted field may not hold a line break. Blank lines are fine at the end.

    Args:
        progress: called with the number of rows read, now and then and at the end.

    Raises:
        DataError: with file, line, column and reason; for a bad row unless rows are skipped, and always for
            an unreadable file, a truncated gzip, a bad header, or when every row is bad.
    """
    reader = _Reader(Path(path), options or CsvOptions())
    try:
        with _open_text(Path(path)) as stream:
            return reader.read(stream, progress or _ignore)
    except EOFError as error:
        raise reader.broken("truncated gzip") from error
    except zlib.error as error:
        raise reader.broken(f"damaged gzip: {error}") from error
    except OSError as error:  # gzip.BadGzipFile is one
        raise reader.broken(error.strerror or f"damaged gzip: {error}") from error


def _ignore(rows: int) -> None:
    pass


@contextmanager
def _open_text(file: Path) -> Iterator[IO[str]]:
    # Opened once and never rewound: it may be a pipe.
    with file.open("rb") as stream:
        # A pipe may hand over a single byte at first; no header begins with this one.
        zipped = stream.peek(1).startswith(b"\x1f")
        binary = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
        # Bad bytes become lone surrogates, so that the row and column that hold them can be named.
        with io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            yield text


class _Lines:
    """Feeds `csv.reader` one line a record, so that a quote left open costs its own line and no other.

    Not a generator, because reading goes on after the BadField with which a second line is refused.
    """

    def __init__(self, file: str, stream: IO[str]) -> None:
        self.number = 0
        self.taken = False
        self._file = file
        self._readline = stream.readline

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self.taken:
            raise BadField(Reason.QUOTE, "a field may not span lines")
        line = self._readline(MAX_LINE_CHARS + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) > MAX_LINE_CHARS:
            raise DataError(self._file, self.number, "", f"line has more than {MAX_LINE_CHARS} characters")
        self.taken = True
        return line


class _Reader:
    """Where we are in one file, and what went wrong so far."""

    def __init__(self, file: Path, options: CsvOptions) -> None:
        self._file = str(file)
        self._options = options
        self._lines: _Lines | None = None
        self._skipped: Counter[Reason] = Counter()
        self._first_bad: DataError | None = None

    def broken(self, reason: str) -> DataError:
        """The file itself fails after the lines read so far."""
        return DataError(self._file, self._lines.number if self._lines else 0, "", reason)

    def read(self, stream: IO[str], progress: Progress) -> CsvEvents:
        lines = self._lines = _Lines(self._file, stream)
        records = csv.reader(lines, strict=True)
        header = self._header(records)
        rows = Rows(header, self._options)
        append, read, blank = rows.append, 0, 0
        while True:
            lines.taken = False
            row: list[str] = []
            bad: BadField | None = None
            try:
                row = next(records)
                if not row:
                    # Whether blank lines stand at the end, where they are fine, shows later.
                    blank += 1
                    continue
                append(row)
            except StopIteration:
                break
            except csv.Error as error:
                bad = BadField(Reason.SYNTAX, str(error))
            except BadField as error:
                bad = error
            if blank:
                for line in range(lines.number - blank, lines.number):
                    self._refuse(line, "", BadField(Reason.FIELDS, f"0, the header has {len(header)}"))
                read, blank = read + blank, 0
            if bad is not None:
                self._refuse(lines.number, *(rows.explain(row, bad) if row else ("", bad)))
            read += 1
            if read % PROGRESS_ROWS == 0:
                progress(read)
        progress(read)
        if self._first_bad is not None and self._skipped.total() == read:
            raise self._first_bad
        return CsvEvents(rows.table(), tuple(Skipped(*item) for item in sorted(self._skipped.items())))

    def _refuse(self, line: int, column: str, error: BadField) -> None:
        refusal = DataError(self._file, line, column, str(error))
        if self._options.on_error == "fail":
            raise refusal from error
        self._first_bad = self._first_bad or refusal
        self._skipped[error.reason] += 1

    def _header(self, records: Iterator[list[str]]) -> list[str]:
        try:
            header = next(records, None)
        except csv.Error as error:
            raise DataError(self._file, 1, "", f"malformed header: {error}") from error
        except BadField as error:
            raise DataError(self._file, 1, "", str(error)) from error
        if header is None:
            raise DataError(self._file, 1, "", "empty file, expected a header")
        twice = [name for name, count in Counter(header).items() if count > 1]
        if twice:
            raise DataError(self._file, 1, twice[0], "stands more than once in the header")
        for name in self._options.columns:
            if name not in header:
                near = difflib.get_close_matches(name, header[:256], n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                found = ", ".join(repr(column[:64]) for column in header[:16])
                raise DataError(self._file, 1, name, f"missing column; the header has {found}{hint}")
        return header
