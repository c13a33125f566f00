"""Read events from CSV or gzipped CSV with a header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaygr.data.readers.columns import NamedColumns
from relaygr.data.readers.delimited import check_header, csv_records, first_line
from relaygr.data.readers.rows import Layout
from relaygr.data.readers.text import Lines, Records, TextReader


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvReader(NamedColumns, TextReader):
    """A row is one line: a quoted field may not hold a line break. Other columns are ignored."""

    def begin(self, lines: Lines, layout: Layout) -> tuple[Sequence[str], Records]:
        header, records = csv_records(lines, first_line(lines))
        check_header(lines, header, layout.columns)
        return header, records
