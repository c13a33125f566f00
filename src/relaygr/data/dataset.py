"""A dataset is a folder of CSR arrays, one run of events per user; here it is opened and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

# Checks read the memory-mapped columns in pieces, so opening never needs memory in the size of the data.
_CHUNK = 1 << 20


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
        timestamps: [events] Unix seconds, not negative, not decreasing within a user.
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
    return events


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
    return meta


def _load(path: Path, column: str) -> npt.NDArray[Any]:
    file = path / f"{column}.npy"
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(str(file), 0, column, error.strerror or str(error)) from error
    except (ValueError, EOFError) as error:
        raise DataError(str(file), 0, column, f"not a readable .npy array: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(str(file), 0, column, "not an .npy array")
    wanted = array.dtype.kind == "S" if column == "users" else array.dtype == np.dtype("<i8")
    if array.ndim != 1 or not wanted:
        kind = "fixed-width bytes" if column == "users" else "little-endian int64"
        reason = f"dtype {array.dtype} with {array.ndim} dimensions, expected {kind} with 1"
        raise DataError(str(file), 0, column, reason)
    return array


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


def _bad(events: Events, column: str, reason: str) -> DataError:
    return DataError(str(events.path / f"{column}.npy"), 0, column, reason)
