"""Options that formats with named columns share."""

from __future__ import annotations

from dataclasses import dataclass

from relaygr.data.readers.fields import TimeUnit, read_flag, time_reader
from relaygr.data.readers.interface import Reader
from relaygr.data.readers.rows import Flag, ItemIds, Layout, item_reader


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns(Reader):
    """How the columns are read.

    Attributes:
        action_columns: flag columns (0, 1, true, false); the first becomes bit 1, and so on. Bit 0, `engage`,
            is set on every event.
        time_unit: milliseconds are divided by 1,000 and rounded down.
        item_ids: "int" takes decimal int64; "hash" maps any string to an int64.
    """

    user_column: str = "user_id"
    item_column: str = "item_id"
    time_column: str = "timestamp"
    action_columns: tuple[str, ...] = ()
    time_unit: TimeUnit = "s"
    item_ids: ItemIds = "int"

    def __post_init__(self) -> None:
        self.layout()

    def layout(self) -> Layout:
        """What the columns mean; ConfigError when two options contradict each other."""
        return Layout(
            self.user_column,
            self.item_column,
            self.time_column,
            item_reader(self.item_ids),
            time_reader(self.time_unit),
            tuple(Flag(name, name, read_flag) for name in self.action_columns),
        )
