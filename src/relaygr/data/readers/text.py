"""Files of text in which a record is one line: opened, unpacked and read strictly, line by line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.readers.fields import BadField, Reason
from relaygr.data.readers.interface import Progress, Read, Reader, ignore
from relaygr.data.readers.rows import Intake, Layout

MAX_LINE_CHARS = 1 << 20

Records = Iterator[Sequence[str]]


class Lines:
    """The lines of a file, one a record, so that a record that does not end costs its own line and no other.

    Not a generator, because reading goes on after the BadField with which a second line is refused.
    """

    def __init__(self, file: str, stream: IO[str]) -> None:
        self.file = file
        self.number = 0
        self.taken = False
        self._readline = stream.readline

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        if self.taken:
            raise BadField(Reason.QUOTE, "a field may not span lines")
        line = self._readline(MAX_LINE_CHARS + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) > MAX_LINE_CHARS:
            raise self.broken(f"line has more than {MAX_LINE_CHARS} characters")
        self.taken = True
        return line

    def broken(self, reason: str, column: str = "") -> DataError:
        """The file itself is wrong, at the line read last."""
        return DataError(self.file, self.number, column, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReader(Reader):
    """Reads lines of UTF-8; gzip is recognised by its first byte, a byte order mark is dropped.

    Blank lines are fine at the end. A file may be a pipe. A format says what its columns mean and how its
    lines become records.
    """

    @abstractmethod
    def layout(self) -> Layout:
        """What the columns mean."""

    @abstractmethod
    def begin(self, lines: Lines, layout: Layout) -> tuple[Sequence[str], Records]:
        """Take the header, if the format has one; answer the columns and what turns `lines` into records.

        The records end with the lines, an empty one is a blank line, and after a BadField they go on.

        Raises:
            DataError: the header is wrong.
        """

    def read(self, *paths: Path | str, progress: Progress = ignore) -> Read:
        intake = Intake(self.layout(), self.on_error, progress)
        for path in files(paths):
            self._read_file(path, intake)
        return intake.done(self.terms.source if self.terms else names(paths))

    def _read_file(self, path: Path, intake: Intake) -> None:
        lines: Lines | None = None
        try:
            with _open_text(path) as stream:
                lines = Lines(str(path), stream)
                _take(lines, *self.begin(lines, intake.layout), intake)
        except EOFError as error:
            raise _unreadable(path, lines, "truncated gzip") from error
        except zlib.error as error:
            raise _unreadable(path, lines, f"damaged gzip: {error}") from error
        except OSError as error:  # gzip.BadGzipFile is one
            raise _unreadable(path, lines, error.strerror or f"damaged gzip: {error}") from error


def files(paths: Sequence[Path | str]) -> list[Path]:
    """The paths of a reading; ConfigError when there are none."""
    if not paths:
        raise ConfigError("files", "no file is given")
    return [Path(path) for path in paths]


def names(paths: Sequence[Path | str]) -> str:
    """What the files are called."""
    return ", ".join(Path(path).name for path in paths)


def _unreadable(path: Path, lines: Lines | None, reason: str) -> DataError:
    """The file itself fails after the lines read so far."""
    return lines.broken(reason) if lines is not None else DataError(str(path), 0, "", reason)


@contextmanager
def _open_text(file: Path) -> Iterator[IO[str]]:
    # Opened once and never rewound: it may be a pipe.
    with file.open("rb") as stream:
        # A pipe may hand over a single byte at first; no text begins with this one.
        zipped = stream.peek(1).startswith(b"\x1f")
        binary = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
        # Bad bytes become lone surrogates, so that the row and column that hold them can be named.
        with io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            yield text


def _take(lines: Lines, header: Sequence[str], records: Records, intake: Intake) -> None:
    """Feed all records to the intake."""
    append, count, blank = intake.columns.appender(header, intake.layout), intake.count, 0
    while True:
        lines.taken = False
        row: Sequence[str] = ()
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
            empty = BadField(Reason.FIELDS, f"0, expected {len(header)}")
            for line in range(lines.number - blank, lines.number):
                intake.refuse(lines.file, line, "", empty)
            count(blank)
            blank = 0
        if bad is not None:
            intake.refuse(lines.file, lines.number, *intake.layout.explain(header, row, bad))
        count()
