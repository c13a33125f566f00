"""Read RecBole atomic interaction files (`.inter`): fields between tabs under a header of `name:type`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaygr.core.errors import ConfigError
from relaygr.data.readers.delimited import check_header, first_line, split_by
from relaygr.data.readers.fields import TimeUnit, rating_reader, read_number_flag, time_reader
from relaygr.data.readers.rows import Flag, ItemIds, Layout, item_reader
from relaygr.data.readers.text import Lines, Records, TextReader

_TYPES = ("token", "float", "token_seq", "float_seq")
_SINGLE = ("token", "float")
_ANY = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecBoleReader(TextReader):
    """Fractions of a timestamp are rounded down. Quotes are letters like others.

    Attributes:
        like_from: a value of `rating_column` of so much or more sets the action bit `like`; None ignores it.
        action_columns: columns of 0 and 1 (also `1.0`) that become action bits.
        item_ids: "hash" maps any token to an int64; "int" wants every token to be a decimal int64.
    """

    user_column: str = "user_id"
    item_column: str = "item_id"
    time_column: str = "timestamp"
    rating_column: str = "rating"
    like_from: float | None = None
    action_columns: tuple[str, ...] = ()
    time_unit: TimeUnit = "s"
    item_ids: ItemIds = "hash"

    def __post_init__(self) -> None:
        # Written so that NaN, which compares false with everything, is refused.
        if self.like_from is not None and not -_ANY < self.like_from < _ANY:
            raise ConfigError("like_from", f"{self.like_from!r} must be a finite number")
        self.layout()

    def layout(self) -> Layout:
        flags = [Flag(name, name, read_number_flag) for name in self.action_columns]
        if self.like_from is not None:
            flags.insert(0, Flag(self.rating_column, "like", rating_reader(self.like_from, -_ANY, _ANY)))
        return Layout(
            self.user_column,
            self.item_column,
            self.time_column,
            item_reader(self.item_ids),
            time_reader(self.time_unit, floor=True),
            tuple(flags),
        )

    def begin(self, lines: Lines, layout: Layout) -> tuple[Sequence[str], Records]:
        split = split_by("\t")
        types: dict[str, str] = {}
        header: list[str] = []
        for field in split(first_line(lines)):
            name, colon, kind = field.rpartition(":")
            if not colon or kind not in _TYPES:
                form = f"name:type, the type one of {', '.join(_TYPES)}"
                raise lines.broken(f"{field[:64]!r} in the header is not {form}", name[:64])
            header.append(name)
            types[name] = kind
        check_header(lines, header, layout.columns)
        for name in layout.columns:
            if types[name] not in _SINGLE:
                raise lines.broken(f"type {types[name]} holds many values, expected token or float", name)
        return header, map(split, lines)
