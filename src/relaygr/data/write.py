"""Turn events in arrival order into a dataset folder, all of it or nothing, the same bytes every time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.config.paths import check_folder
from relaygr.core.errors import BackendError, ConfigError, DataError, RequestError
from relaygr.core.ids import user_id
from relaygr.data.dataset import (
    COLUMNS,
    DEFAULT_ACTIONS,
    FORMAT_VERSION,
    META_FILE,
    TIME_LIMIT_S,
    Events,
    Int64s,
    Meta,
    Names,
    Totals,
    check_action_names,
    open_events,
    read_meta,
)
from relaygr.data.replace import MAX_FOLDER_NAME_BYTES, replace_folder


@dataclass(frozen=True, slots=True, eq=False)
class EventTable:
    """Events in arrival order, users mixed; `user_index` points into `users`, which may hold idle users."""

    users: Sequence[str]
    user_index: Int64s  # [events]
    item_ids: Int64s  # [events]
    timestamps: Int64s  # [events] Unix seconds
    actions: Int64s  # [events] bit sets
    action_names: tuple[str, ...] = DEFAULT_ACTIONS


def write_events(folder: Path | str, table: EventTable, *, name: str, source: str, licence: str) -> Events:
    """Write `table` as the dataset `folder` and open it; an older dataset there is replaced.

    Users keep the order of the table. A user's events are sorted by time; equal times keep arrival order.

    Raises:
        ConfigError: `folder` holds something that is not a dataset; nothing is touched.
        DataError: a column of the table is wrong.
        BackendError: the file system refused.
    """
    target = Path(folder).resolve()
    check_target(target)
    for field, text in (("name", name), ("source", source), ("licence", licence)):
        _check_unicode(field, text)
    _check_table(target, table)
    order = _time_order(table)
    counts = np.bincount(table.user_index, minlength=len(table.users)).astype(np.int64)
    times = _column(table.timestamps, order)
    items = _column(table.item_ids, order)
    arrays: dict[str, npt.NDArray[np.int64] | Names] = {
        "users": _names(target, table.users),
        "offsets": np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype("<i8"),
        "item_ids": items,
        "timestamps": times,
        "actions": _column(table.actions, order),
    }
    totals = Totals(
        users=len(table.users),
        events=len(items),
        items=int(np.unique(items).size),
        first_s=int(times.min()) if times.size else 0,
        last_s=int(times.max()) if times.size else 0,
    )
    meta = Meta(
        format_version=FORMAT_VERSION,
        name=name,
        source=source,
        licence=licence,
        actions=table.action_names,
        statistics=totals,
    )

    def fill(fresh: Path) -> None:
        for column in COLUMNS:
            np.save(fresh / f"{column}.npy", arrays[column], allow_pickle=False)
        text = msgspec.json.format(msgspec.json.encode(meta), indent=2)
        (fresh / META_FILE).write_bytes(text + b"\n")

    try:
        replace_folder(target, fill)
    except OSError as error:
        raise BackendError(f"cannot write dataset {target}: {error.strerror or error}") from error
    return open_events(target)


def check_target(folder: Path | str) -> None:
    """Raise ConfigError when no dataset may or can be written to `folder`.

    A folder may be replaced only if every single thing in it is known to be ours.
    """
    target = Path(folder).resolve()
    size = len(os.fsencode(target.name))
    if size > MAX_FOLDER_NAME_BYTES:
        raise ConfigError("out", f"{target.name[:32]}... has {size} bytes, limit {MAX_FOLDER_NAME_BYTES}")
    check_folder("out", target)
    if not target.exists():
        return
    problem = ""
    present = {child.name for child in target.iterdir()}
    strangers = sorted(present - {META_FILE} - {f"{column}.npy" for column in COLUMNS})
    if strangers:
        problem = f"exists and holds {strangers[0]!r}, which is no part of a dataset"
    elif present:
        try:
            read_meta(target)
        except DataError as error:
            problem = f"exists and is not a dataset ({error.reason})"
    if problem:
        raise ConfigError("out", f"{target} {problem}; choose another folder")


def _check_table(target: Path, table: EventTable) -> None:
    length = len(table.user_index)
    for column in ("user_index", "item_ids", "timestamps", "actions"):
        array = getattr(table, column)
        if array.ndim != 1 or array.dtype != np.int64:
            raise DataError(
                str(target), 0, column, f"{array.dtype} with {array.ndim} dimensions, expected int64 with 1"
            )
        if len(array) != length:
            raise DataError(str(target), 0, column, f"length {len(array)}, expected {length} as user_index")
    if length and not 0 <= int(table.user_index.min()) <= int(table.user_index.max()) < len(table.users):
        raise DataError(str(target), 0, "user_index", f"points outside the {len(table.users)} users")
    if length and int(table.timestamps.min()) < 0:
        raise DataError(str(target), 0, "timestamps", f"{int(table.timestamps.min())} is negative")
    if length and int(table.timestamps.max()) >= TIME_LIMIT_S:
        raise DataError(
            str(target), 0, "timestamps", f"{int(table.timestamps.max())} s, limit {TIME_LIMIT_S - 1}"
        )
    check_action_names(target, table.action_names)
    for action in table.action_names:
        _check_unicode("actions", action)
    unnamed = ~((1 << len(table.action_names)) - 1)
    if length and np.any(table.actions & unnamed):
        raise DataError(
            str(target), 0, "actions", f"a bit without a name is set; names: {table.action_names}"
        )


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(field, f"{text[:64]!r} is not valid Unicode: {error.reason}") from error


def _names(target: Path, users: Sequence[str]) -> Names:
    if len(set(users)) < len(users):
        raise DataError(str(target), 0, "users", "a user stands more than once")
    try:
        encoded = [user_id(user).encode("utf-8") for user in users]
    except RequestError as error:
        raise DataError(str(target), 0, "users", str(error)) from error
    return np.array(encoded, dtype=f"S{max(map(len, encoded), default=1)}")


def _time_order(table: EventTable) -> npt.NDArray[np.intp] | None:
    """The stable order by (user, time), or None when the table already has it."""
    same = table.user_index[1:] == table.user_index[:-1]
    rising = (table.user_index[1:] > table.user_index[:-1]) | (
        same & (table.timestamps[1:] >= table.timestamps[:-1])
    )
    return None if bool(rising.all()) else np.lexsort((table.timestamps, table.user_index))


def _column(values: Int64s, order: npt.NDArray[np.intp] | None) -> Int64s:
    return np.ascontiguousarray(values if order is None else values[order], dtype="<i8")
