"""Read events from CSV or gzipped CSV, strictly, holding no Python object per row."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
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
    """Read a CSV file with a header; gzip is recognised by its first bytes, a byte order mark is dropped.

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


def _open_text(file: Path) -> IO[str]:
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    # Closed with the wrapper that is returned.
    binary = cast(IO[bytes], gzip.open(file, "rb")) if zipped else file.open("rb")  # noqa: SIM115
    # Bad bytes become lone surrogates, so that the row and column that hold them can be named.
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="")


class _Reader:
    """Where we are in one file, and what went wrong so far."""

    def __init__(self, file: Path, options: CsvOptions) -> None:
        self._file = str(file)
        self._options = options
        self._line = 0
        self._skipped: Counter[Reason] = Counter()
        self._first_bad: DataError | None = None

    def broken(self, reason: str) -> DataError:
        """The file itself fails after the lines read so far."""
        return DataError(self._file, self._line, "", reason)

    def read(self, stream: IO[str], progress: Progress) -> CsvEvents:
        records = csv.reader(self._lines(stream), strict=True)
        rows = Rows(self._header(records), self._options)
        append, read = rows.append, 0
        while True:
            # A record may span lines; an error is reported at the line where it begins.
            begin = self._line + 1
            row: list[str] = []
            try:
                row = next(records)
                append(row)
            except StopIteration:
                break
            except csv.Error as error:
                self._refuse(begin, "", BadField(Reason.SYNTAX, str(error)))
            except BadField as error:
                self._refuse(begin, *rows.explain(row, error))
            read += 1
            if read % PROGRESS_ROWS == 0:
                progress(read)
        progress(read)
        if self._first_bad is not None and self._skipped.total() == read:
            raise self._first_bad
        return CsvEvents(rows.table(), tuple(Skipped(*item) for item in sorted(self._skipped.items())))

    def _lines(self, stream: IO[str]) -> Iterator[str]:
        while line := stream.readline(MAX_LINE_CHARS + 1):
            self._line += 1
            if len(line) > MAX_LINE_CHARS:
                raise self.broken(f"line has more than {MAX_LINE_CHARS} characters")
            yield line

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
