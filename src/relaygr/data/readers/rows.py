"""What a record must hold, whatever format it comes in, and the columns that good records grow."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.dataset import DEFAULT_ACTIONS, MAX_ACTIONS, Int64s
from relaygr.data.readers.fields import BadField, Reason, check_user, hash_item, read_integer
from relaygr.data.readers.interface import OnError, Progress, Read, Skipped
from relaygr.data.write import EventTable

PROGRESS_RECORDS = 1 << 16

ItemIds = Literal["int", "hash"]
Append = Callable[[Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Flag:
    """A column that becomes the action bit named `action`, 0 or 1 as `read` answers."""

    column: str
    action: str
    read: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a format mean what; every reader raises BadField.

    Attributes:
        flags: the first becomes bit 1, and so on. Bit 0, `engage`, is set on every event.
    """

    user: str
    item: str
    time: str
    read_item: Callable[[str], int]
    read_time: Callable[[str], int]
    flags: tuple[Flag, ...] = ()

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise ConfigError("columns", f"{twice[0]!r} is asked for twice")
        if DEFAULT_ACTIONS[0] in self.actions[1:]:
            raise ConfigError(
                "action_columns", f"{DEFAULT_ACTIONS[0]!r} is bit 0, set on every event; rename it"
            )
        if len(self.flags) >= MAX_ACTIONS:
            raise ConfigError("action_columns", f"{len(self.flags)} columns, limit {MAX_ACTIONS - 1}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names a record must hold."""
        return (self.user, self.item, self.time, *(flag.column for flag in self.flags))

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the bits."""
        return DEFAULT_ACTIONS + tuple(flag.action for flag in self.flags)

    def explain(self, header: Sequence[str], row: Sequence[str], error: BadField) -> tuple[str, BadField]:
        """The first column of a refused `row` that is wrong, and how; "" when the row as a whole is."""
        if error.reason is Reason.FIELDS or error.column or not row:
            return error.column, error
        checks: list[tuple[str, Callable[[str], object]]] = [(name, check_text) for name in header]
        checks += [(self.user, check_user), (self.item, self.read_item), (self.time, self.read_time)]
        checks += [(flag.column, flag.read) for flag in self.flags]
        for name, check in checks:
            try:
                check(row[header.index(name)])
            except BadField as found:
                return name, found
        return "", error


def item_reader(item_ids: ItemIds) -> Callable[[str], int]:
    """The reader of item ids: "int" takes decimal int64, "hash" maps any string to an int64."""
    return hash_item if item_ids == "hash" else read_integer


class Columns:
    """Grows 32 bytes an event; a bad record leaves no trace."""

    def __init__(self) -> None:
        self._users: dict[str, int] = {}
        self._user_index, self._items, self._times, self._actions = (array("q") for _ in range(4))

    def appender(self, header: Sequence[str], layout: Layout) -> Append:
        """What takes a row under `header` or raises BadField.

        It is the inner loop's body: a closure, because attribute look-ups would be a third of its time.
        """
        width, users = len(header), self._users
        user_at, item_at, time_at = (header.index(name) for name in layout.columns[:3])
        flags_at = [(header.index(flag.column), bit, flag.read) for bit, flag in enumerate(layout.flags, 1)]
        read_item, read_time = layout.read_item, layout.read_time
        add_user, add_item = self._user_index.append, self._items.append
        add_time, add_actions = self._times.append, self._actions.append

        def append(row: Sequence[str]) -> None:
            if len(row) != width:
                raise BadField(Reason.FIELDS, f"{len(row)}, expected {width}")
            joined = "".join(row)
            if not joined.isascii() or "\x00" in joined:
                for text in row:
                    check_text(text)
            item, time_s, actions = read_item(row[item_at]), read_time(row[time_at]), 1
            for at, bit, read in flags_at:
                actions |= read(row[at]) << bit
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

    def extend(self, user: str, items: Sequence[int], time_s: int) -> None:
        """Plain events of one user in one second, all of them known to be good."""
        index = self._users.setdefault(user, len(self._users))
        self._user_index.extend([index] * len(items))
        self._items.extend(items)
        self._times.extend([time_s] * len(items))
        self._actions.extend([1] * len(items))

    def table(self, actions: tuple[str, ...]) -> EventTable:
        """The events so far; the buffers are shared, so append no more."""
        return EventTable(
            users=list(self._users),
            user_index=_int64s(self._user_index),
            item_ids=_int64s(self._items),
            timestamps=_int64s(self._times),
            actions=_int64s(self._actions),
            action_names=actions,
        )


class Intake:
    """One reading over all of its files: the events, the records read, and those that were refused."""

    def __init__(
        self, layout: Layout, on_error: OnError, progress: Progress, step: int = PROGRESS_RECORDS
    ) -> None:
        self.layout = layout
        self.columns = Columns()
        self._on_error, self._progress, self._step = on_error, progress, step
        self._read = 0
        self._skipped: Counter[Reason] = Counter()
        self._first_bad: DataError | None = None

    def count(self, records: int = 1) -> None:
        """So many more records were read, good or bad."""
        before, self._read = self._read, self._read + records
        if self._read // self._step > before // self._step:
            self._progress(self._read)

    def refuse(self, file: str, line: int, column: str, error: BadField) -> None:
        """Raise DataError for a bad record, or count it."""
        refusal = DataError(file, line, column, str(error))
        if self._on_error == "fail":
            raise refusal from error
        self._first_bad = self._first_bad or refusal
        self._skipped[error.reason] += 1

    def leave_out(self, reason: Reason) -> None:
        """Count a record that is well formed but not wanted, whatever is done with bad ones."""
        self._skipped[reason] += 1

    def done(self, source: str) -> Read:
        """Everything read from `source`; DataError, the first one, when all of it was bad."""
        self._progress(self._read)
        if self._first_bad is not None and self._skipped.total() >= self._read:
            raise self._first_bad
        skipped = tuple(Skipped(*item) for item in sorted(self._skipped.items()))
        return Read(self.columns.table(self.layout.actions), source, skipped)


def check_text(text: str) -> None:
    """Refuse NUL, and the lone surrogates that stand for bytes that are not UTF-8."""
    if "\x00" in text:
        raise BadField(Reason.NUL, f"{text[:64]!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadField(Reason.UTF8, f"{_raw(text[:64])!r}") from error


def _raw(text: str) -> bytes | str:
    """The bytes that were no UTF-8; a surrogate that was written as an escape stays text."""
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        return text


def _int64s(column: array[int]) -> Int64s:
    return np.frombuffer(column, dtype=np.int64)
