"""What a row of an event file must look like, and the columns that good rows grow."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import DEFAULT_ACTIONS, MAX_ACTIONS, Int64s
from relaygr.data.fields import (
    BadField,
    Reason,
    TimeUnit,
    check_user,
    hash_item,
    read_flag,
    read_integer,
    time_reader,
)
from relaygr.data.write import EventTable


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How the columns are read.

    Attributes:
        action_columns: flag columns (0, 1, true, false); the first becomes bit 1, and so on. Bit 0, `engage`,
            is set on every event.
        time_unit: milliseconds are divided by 1,000 and rounded down.
        item_ids: "int" takes decimal int64; "hash" maps any string to an int64.
        on_error: "fail" stops at the first bad row; "skip" counts bad rows by reason.
    """

    user_column: str = "user_id"
    item_column: str = "item_id"
    time_column: str = "timestamp"
    action_columns: tuple[str, ...] = ()
    time_unit: TimeUnit = "s"
    item_ids: Literal["int", "hash"] = "int"
    on_error: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise ConfigError("columns", f"{twice[0]!r} is asked for twice")
        if DEFAULT_ACTIONS[0] in self.action_columns:
            raise ConfigError(
                "action_columns", f"{DEFAULT_ACTIONS[0]!r} is bit 0, set on every event; rename it"
            )
        if len(self.action_columns) >= MAX_ACTIONS:
            raise ConfigError(
                "action_columns", f"{len(self.action_columns)} columns, limit {MAX_ACTIONS - 1}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names a header must hold."""
        return (self.user_column, self.item_column, self.time_column, *self.action_columns)


class Rows:
    """Takes rows under `header` and keeps 32 bytes of each; a bad row leaves no trace.

    `append(row)` raises BadField; `explain(row)` then finds the column at fault.
    """

    append: Callable[[Sequence[str]], None]

    def __init__(self, header: Sequence[str], options: CsvOptions) -> None:
        self._header = header
        self._options = options
        self._users: dict[str, int] = {}
        self._user_index, self._items, self._times, self._actions = (array("q") for _ in range(4))
        self._read_item = hash_item if options.item_ids == "hash" else read_integer
        self._read_time = time_reader(options.time_unit)
        self.append = self._appender()

    def _appender(self) -> Callable[[Sequence[str]], None]:
        """The inner loop's body: a closure, because attribute look-ups would be a third of its time."""
        header, options, width, users = self._header, self._options, len(self._header), self._users
        user_at, item_at, time_at = (header.index(name) for name in options.columns[:3])
        flags_at = [(header.index(name), bit) for bit, name in enumerate(options.action_columns, start=1)]
        read_item, read_time = self._read_item, self._read_time
        add_user, add_item = self._user_index.append, self._items.append
        add_time, add_actions = self._times.append, self._actions.append

        def append(row: Sequence[str]) -> None:
            if len(row) != width:
                raise BadField(Reason.FIELDS, f"{len(row)}, the header has {width}")
            joined = "".join(row)
            if not joined.isascii() or "\x00" in joined:
                for text in row:
                    check_text(text)
            item, time_s, actions = read_item(row[item_at]), read_time(row[time_at]), 1
            for at, bit in flags_at:
                actions |= read_flag(row[at]) << bit
            name = row[user_at]
            index = users.get(name)
            if index is None:
                index = users[check_user(name)] = len(users)
            # Nothing may fail from here on, or the columns would differ in length.
            add_user(index)
            add_item(item)
            add_time(time_s)
            add_actions(actions)

        return append

    def explain(self, row: Sequence[str], error: BadField) -> tuple[str, BadField]:
        """The first column of a refused `row` that is wrong, and how; "" when the row as a whole is."""
        if error.reason is Reason.FIELDS:
            return "", error
        options = self._options
        checks: list[tuple[str, Callable[[str], object]]] = [(name, check_text) for name in self._header]
        checks += [
            (options.user_column, check_user),
            (options.item_column, self._read_item),
            (options.time_column, self._read_time),
            *((name, read_flag) for name in options.action_columns),
        ]
        for name, check in checks:
            try:
                check(row[self._header.index(name)])
            except BadField as found:
                return name, found
        return "", error

    def table(self) -> EventTable:
        """The events so far, in the order of the rows; the row buffers are shared, so append no more."""
        return EventTable(
            users=list(self._users),
            user_index=_int64s(self._user_index),
            item_ids=_int64s(self._items),
            timestamps=_int64s(self._times),
            actions=_int64s(self._actions),
            action_names=DEFAULT_ACTIONS + self._options.action_columns,
        )


def check_text(text: str) -> None:
    """Refuse NUL, and the lone surrogates that stand for bytes that are not UTF-8."""
    if "\x00" in text:
        raise BadField(Reason.NUL, f"{text[:64]!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raw = text[:64].encode("utf-8", errors="surrogateescape")
        raise BadField(Reason.UTF8, f"{raw!r}") from error


def _int64s(column: array[int]) -> Int64s:
    return np.frombuffer(column, dtype=np.int64)
