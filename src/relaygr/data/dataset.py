"""A dataset is a folder of CSR arrays, one run of events per user; here it is opened and checked."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.core.errors import DataError, RequestError
from relaygr.core.ids import MAX_NAME_BYTES, UserId, user_id

Int64s = npt.NDArray[np.int64]
Names = npt.NDArray[np.bytes_]

FORMAT_VERSION = 1
META_FILE = "meta.json"
COLUMNS = ("users", "offsets", "item_ids", "timestamps", "actions")
DEFAULT_ACTIONS = ("engage",)
MAX_ACTIONS = 63
MAX_META_BYTES = 1 << 20
# Milliseconds passed it in 1973, seconds will in the year 5138: what is larger is in a finer unit.
TIME_LIMIT_S = 10**11

# Checks read the memory-mapped columns in pieces, so opening never needs memory in the size of the data.
_CHUNK = 1 << 20
_MAX_HEADER_BYTES = 10_000
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|=][a-zA-Z][0-9]{0,6})', 'fortran_order': (?:True|False), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,18},? ?){0,32})\),? ?\} *\n"
)


class Totals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes a reader wants to know before it opens the arrays; times are 0 when there are no events."""

    users: int
    events: int
    items: int
    first_s: int
    last_s: int


class Meta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `meta.json` holds; `actions[b]` names bit `b` of the action column."""

    format_version: int
    name: str
    source: str
    licence: str
    actions: tuple[str, ...]
    statistics: Totals


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """All events of a dataset: user `i` owns the run [offsets[i], offsets[i + 1]) of the three event columns.

    Attributes:
        users: [users] UTF-8 names, unique, in dataset order.
        offsets: [users + 1], from 0 to the number of events.
        item_ids: [events], any int64.
        timestamps: [events] Unix seconds in [0, 10^11), not decreasing within a user.
        actions: [events] bit sets; bit 0 is a plain interaction.
    """

    path: Path
    meta: Meta
    users: Names
    offsets: Int64s
    item_ids: Int64s
    timestamps: Int64s
    actions: Int64s

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_events(self) -> int:
        return len(self.item_ids)

    def user(self, index: int) -> UserId:
        """The name of user `index`; IndexError outside [0, n_users)."""
        return UserId(bytes(self.users[self._checked(index)]).decode("utf-8"))

    def history(self, index: int) -> tuple[Int64s, Int64s, Int64s]:
        """Views (item_ids, timestamps, actions) of user `index`, oldest first; else IndexError."""
        run = slice(int(self.offsets[self._checked(index)]), int(self.offsets[index + 1]))
        return self.item_ids[run], self.timestamps[run], self.actions[run]

    def _checked(self, index: int) -> int:
        # numpy would read -1 as the last user and give the empty run [events, 0) for its history.
        if not 0 <= index < len(self.users):
            raise IndexError(f"user index {index} is outside [0, {len(self.users)})")
        return index


def open_events(folder: Path | str) -> Events:
    """Memory-map the dataset in `folder` and check it.

    Raises:
        DataError: naming the file, the column and what is wrong with it.
    """
    path = Path(folder)
    meta = read_meta(path)
    users, offsets, item_ids, timestamps, actions = (_load(path, column) for column in COLUMNS)
    events = Events(path, meta, users, offsets, item_ids, timestamps, actions)
    _check_lengths(events)
    _check_users(events)
    _check_times(events)
    _check_actions(events)
    _check_totals(events)
    return events


def check_action_names(file: Path, names: tuple[str, ...]) -> None:
    """Raise DataError, naming `file`, unless there are 1 to 63 different names."""
    if not 1 <= len(names) <= MAX_ACTIONS:
        raise DataError(str(file), 0, "actions", f"{len(names)} names, limit 1 to {MAX_ACTIONS}")
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise DataError(str(file), 0, "actions", f"{twice[:64]!r} stands more than once")


def read_meta(path: Path) -> Meta:
    """Read `meta.json` of the dataset in `path`; DataError when it is missing or not ours."""
    file = path / META_FILE
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_META_BYTES + 1)
    except OSError as error:
        raise DataError(str(file), 0, META_FILE, f"{error.strerror}; is {path} a dataset?") from error
    if len(data) > MAX_META_BYTES:
        raise DataError(str(file), 0, META_FILE, f"more than {MAX_META_BYTES} bytes")
    try:
        meta = msgspec.json.decode(data, type=Meta)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(str(file), 0, META_FILE, str(error)) from error
    if meta.format_version != FORMAT_VERSION:
        reason = f"format version {meta.format_version}, this release reads {FORMAT_VERSION}"
        raise DataError(str(file), 0, "format_version", reason)
    check_action_names(file, meta.actions)
    return meta


def _load(path: Path, column: str) -> npt.NDArray[Any]:
    file = path / f"{column}.npy"
    try:
        with file.open("rb") as stream:
            dtype, shape = _read_header(stream)
            wanted = dtype.kind == "S" if column == "users" else dtype == np.dtype("<i8")
            if len(shape) != 1 or not wanted:
                kind = "fixed-width bytes" if column == "users" else "little-endian int64"
                reason = f"dtype {dtype} with {len(shape)} dimensions, expected {kind} with 1"
                raise DataError(str(file), 0, column, reason)
            begin = stream.tell()
            held, needed = stream.seek(0, os.SEEK_END) - begin, shape[0] * dtype.itemsize
            if held != needed:
                raise DataError(str(file), 0, column, f"{held} bytes behind the header, expected {needed}")
            return np.memmap(stream, dtype, mode="r", offset=begin, shape=shape)
    except OSError as error:
        raise DataError(str(file), 0, column, error.strerror or str(error)) from error
    except (ValueError, TypeError) as error:
        raise DataError(str(file), 0, column, f"not a readable .npy array: {error}") from error


def _read_header(stream: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """What `np.save` writes of a plain array, and nothing else: numpy's own reader evaluates the header.

    Raises:
        ValueError, TypeError: it is not that.
    """
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise ValueError(f"it begins with {start!r}")
    length = int.from_bytes(stream.read(2 if start[6] == 1 else 4), "little")
    header = stream.read(min(length, _MAX_HEADER_BYTES))
    found = _HEADER.fullmatch(header)
    if found is None or len(header) != length:
        raise ValueError(f"its header is {header[:64]!r}")
    shape = tuple(int(size) for size in found["shape"].split(b",") if size.strip())
    return np.dtype(found["dtype"].decode("ascii")), shape


def _check_lengths(events: Events) -> None:
    n_users, n_events = len(events.users), len(events.item_ids)
    offsets = events.offsets
    if len(offsets) != n_users + 1:
        raise _bad(events, "offsets", f"length {len(offsets)}, expected users + 1 = {n_users + 1}")
    if offsets[0] != 0 or offsets[-1] != n_events:
        raise _bad(events, "offsets", f"run from {offsets[0]} to {offsets[-1]}, expected 0 to {n_events}")
    for low in range(0, n_users, _CHUNK):
        falls = np.flatnonzero(np.diff(offsets[low : low + _CHUNK + 1]) < 0)
        if falls.size:
            raise _bad(events, "offsets", f"decrease after index {low + int(falls[0])}")
    for column in ("timestamps", "actions"):
        length = len(getattr(events, column))
        if length != n_events:
            raise _bad(events, column, f"length {length}, expected one per event, {n_events}")
    totals = events.meta.statistics
    if (totals.users, totals.events) != (n_users, n_events):
        reason = (
            f"says {totals.users} users and {totals.events} events, the arrays hold {n_users} and {n_events}"
        )
        raise DataError(str(events.path / META_FILE), 0, "statistics", reason)


def _check_users(events: Events) -> None:
    if events.users.dtype.itemsize > MAX_NAME_BYTES:
        raise _bad(events, "users", f"width {events.users.dtype.itemsize} bytes, limit {MAX_NAME_BYTES}")
    for index, raw in enumerate(events.users):
        try:
            user_id(bytes(raw).decode("utf-8"))
        except (UnicodeDecodeError, RequestError) as error:
            raise _bad(events, "users", f"user {index}: {error}") from error
    names, counts = np.unique(events.users, return_counts=True)
    if names.size < len(events.users):
        raise _bad(events, "users", f"{bytes(names[counts > 1][0])!r} stands more than once")


def _check_times(events: Events) -> None:
    times, offsets = events.timestamps, events.offsets
    first_of_user = offsets[:-1]
    for low in range(0, events.n_events, _CHUNK):
        chunk = times[low : low + _CHUNK + 1]
        if int(chunk.min()) < 0:
            raise _bad(events, "timestamps", f"negative at event {low + int(np.argmin(chunk))}")
        if int(chunk.max()) >= TIME_LIMIT_S:
            event = low + int(np.argmax(chunk))
            raise _bad(events, "timestamps", f"{times[event]} s at event {event}, limit {TIME_LIMIT_S - 1}")
        falls = low + 1 + np.flatnonzero(chunk[1:] < chunk[:-1])
        # A fall is fine exactly where the next user's run begins.
        begins = np.searchsorted(first_of_user, falls)
        inside = falls[first_of_user[np.minimum(begins, len(first_of_user) - 1)] != falls]
        if inside.size:
            event = int(inside[0])
            owner = int(np.searchsorted(offsets, event, side="right")) - 1
            raise _bad(
                events, "timestamps", f"event {event} of user {owner} is earlier than the one before it"
            )


def _check_actions(events: Events) -> None:
    unnamed = ~((1 << len(events.meta.actions)) - 1)
    for low in range(0, events.n_events, _CHUNK):
        wrong = np.flatnonzero(events.actions[low : low + _CHUNK] & unnamed)
        if wrong.size:
            event = low + int(wrong[0])
            reason = f"{events.actions[event]} at event {event} sets a bit that {META_FILE} does not name"
            raise _bad(events, "actions", f"{reason}; names: {', '.join(events.meta.actions)}")


def _check_totals(events: Events) -> None:
    """The times exactly; the number of items, which would take a sort, by its range."""
    totals = events.meta.statistics
    held = (int(events.timestamps.min()), int(events.timestamps.max())) if events.n_events else (0, 0)
    if (totals.first_s, totals.last_s) != held:
        reason = (
            f"says seconds {totals.first_s} to {totals.last_s}, the events run from {held[0]} to {held[1]}"
        )
        raise DataError(str(events.path / META_FILE), 0, "statistics", reason)
    least = min(events.n_events, 1)
    if not least <= totals.items <= events.n_events:
        reason = f"says {totals.items} items, limit {least} to {events.n_events}, the events"
        raise DataError(str(events.path / META_FILE), 0, "statistics", reason)


def _bad(events: Events, column: str, reason: str) -> DataError:
    return DataError(str(events.path / f"{column}.npy"), 0, column, reason)
