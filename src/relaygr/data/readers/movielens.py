"""Read MovieLens ratings: `ratings.csv` of newer sets, `ratings.dat` and `u.data` of older ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from relaygr.core.errors import ConfigError
from relaygr.data.readers.delimited import check_header, csv_records, first_line, split_by
from relaygr.data.readers.fields import rating_reader, read_integer, time_reader
from relaygr.data.readers.interface import Terms
from relaygr.data.readers.rows import Flag, Layout
from relaygr.data.readers.text import Lines, Records, TextReader

LOWEST, HIGHEST = 0.5, 5.0
_COLUMNS = ("userId", "movieId", "rating", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MovieLensReader(TextReader):
    """The form is told by the first line: fields between `::`, between tabs, or CSV with a header.

    Attributes:
        like_from: a rating of so many stars or more sets the action bit `like`.
    """

    terms: ClassVar[Terms | None] = Terms(
        source=(
            "MovieLens, GroupLens Research, University of Minnesota. F. Maxwell Harper and Joseph A. "
            "Konstan. 2015. The MovieLens Datasets: History and Context. ACM Transactions on Interactive "
            "Intelligent Systems 5, 4, Article 19. https://doi.org/10.1145/2827872"
        ),
        licence=(
            "GroupLens terms: for research, not for commercial or revenue-bearing use without permission; "
            "publications must cite the source, no endorsement may be implied, no warranty. Whether the data "
            "or what is made from it may be passed on differs by set: see its README."
        ),
    )

    like_from: float = 4.0

    def __post_init__(self) -> None:
        if not LOWEST <= self.like_from <= HIGHEST:
            raise ConfigError("like_from", f"{self.like_from!r} must be in [{LOWEST:g}, {HIGHEST:g}]")

    def layout(self) -> Layout:
        like = Flag("rating", "like", rating_reader(self.like_from, LOWEST, HIGHEST))
        return Layout("userId", "movieId", "timestamp", read_integer, time_reader("s"), (like,))

    def begin(self, lines: Lines, layout: Layout) -> tuple[Sequence[str], Records]:
        first = first_line(lines)
        for separator in ("::", "\t"):
            if separator in first:
                return _COLUMNS, map(split_by(separator), chain([first], lines))
        header, records = csv_records(lines, first)
        check_header(lines, header, layout.columns)
        return header, records
