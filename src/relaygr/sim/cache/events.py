"""Requests from a log of events: one before every so many events of a user, and one on each return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.dataset import open_events
from relaygr.data.readers.csvfile import CsvReader
from relaygr.data.readers.delimited import check_header, csv_records, first_line
from relaygr.data.readers.fields import BadField, Reason, read_integer
from relaygr.data.readers.rows import Layout
from relaygr.data.readers.text import Lines, Records, TextReader
from relaygr.sim.cache.trace import Ints, Trace, peaks, windowed

_TIME_LIMIT_MS = 10**14


class Visits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How events become requests.

    Attributes:
        events_per_request: a user makes a request before each so many events.
        gap_min: and before an event that comes more than so many minutes after the one before it.
        max_length: the model's longest history, in events.
        slide: steps in which the window moves once a history is longer, as a share of `max_length`.
    """

    events_per_request: int = 10
    gap_min: float = 30.0
    max_length: int = 8192
    slide: float = 0.25

    def __post_init__(self) -> None:
        for name, value, holds, wanted in (
            (
                "events_per_request",
                self.events_per_request,
                1 <= self.events_per_request <= 2**20,
                "in [1, 1048576]",
            ),
            ("gap_min", self.gap_min, 0 < self.gap_min <= 1e9, "in (0, 1e9]"),
            ("max_length", self.max_length, 1 <= self.max_length <= 2**20, "in [1, 1048576]"),
            ("slide", self.slide, 0 <= self.slide <= 1, "in [0, 1]"),
        ):
            if not holds:
                raise ConfigError(f"visits.{name}", f"{value} must be {wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KuaiRandTimes(TextReader):
    """The users, videos and times of a KuaiRand log, times in milliseconds; other columns do not matter."""

    def layout(self) -> Layout:
        return Layout("user_id", "video_id", "time_ms", read_integer, _milliseconds)

    def begin(self, lines: Lines, layout: Layout) -> tuple[Sequence[str], Records]:
        header, records = csv_records(lines, first_line(lines))
        check_header(lines, header, layout.columns)
        return header, records


def read_kuairand(files: Sequence[Path], visits: Visits) -> Trace:
    """Read KuaiRand logs as one.

    Raises:
        DataError: naming file, line and column.
    """
    table = KuaiRandTimes().read(*files).table
    return requests_of(_names(files), table.user_index, table.timestamps, visits)


def read_csv(files: Sequence[Path], visits: Visits) -> Trace:
    """Read event logs of the columns user_id, item_id and timestamp (seconds) as one; DataError as above."""
    table = CsvReader(item_ids="hash").read(*files).table
    return requests_of(_names(files), table.user_index, 1000 * table.timestamps, visits)


def read_dataset(folder: Path, visits: Visits) -> Trace:
    """Read a dataset that `relaygr data` made; DataError if it is none."""
    events = open_events(folder)
    owner = np.repeat(np.arange(events.n_users), np.diff(events.offsets))
    return requests_of(folder.name, owner, 1000 * np.asarray(events.timestamps), visits)


def requests_of(name: str, user: Ints, time_ms: Ints, visits: Visits) -> Trace:
    """The requests that a log of events stands for.

    A user's events are sorted by time, and those of one time keep their order. A request is made at the time
    of the event that it leads to, and its history is all events before that one: the user's first event is
    no request, since there is no history yet.

    Raises:
        DataError: there is no request in it.
    """
    order = np.lexsort((time_ms, user))
    user, time_ms = user[order], time_ms[order]
    opens = np.flatnonzero(np.append(True, user[1:] != user[:-1])) if len(user) else np.zeros(0, np.int64)
    before = np.arange(len(user)) - np.repeat(opens, np.diff(np.append(opens, len(user))))
    gap = np.zeros(len(user), np.bool_)
    gap[1:] = (time_ms[1:] - time_ms[:-1] > 60_000 * visits.gap_min) & (before[1:] > 0)
    # Since the last gap or the first event, whichever is later.
    starts = np.flatnonzero(gap | (before == 0))
    since = np.arange(len(user)) - np.repeat(starts, np.diff(np.append(starts, len(user))))
    asked = (before > 0) & (since % visits.events_per_request == 0)
    if not asked.any():
        raise DataError(name, 0, "", f"no request in {len(user)} events")
    user, time_ms, events = user[asked], time_ms[asked], before[asked]
    new = events.copy()
    later = np.append(False, user[1:] == user[:-1])
    new[later] = (events[1:] - events[:-1])[later[1:]]
    length, same = windowed(events, new, visits.max_length, round(visits.slide * visits.max_length))
    known, user = np.unique(user, return_inverse=True)
    base = int(peaks(user, length, len(known)).sum())
    order = np.argsort(time_ms, kind="stable")
    return Trace(
        name=name,
        time_ms=time_ms[order],
        user=user[order],
        length=length[order],
        same=same[order],
        users=len(known),
        base_tokens=base,
    )


def _milliseconds(text: str) -> int:
    value = read_integer(text)
    if value < 0:
        raise BadField(Reason.NEGATIVE, f"{text[:64]!r}, limit 0")
    if value >= _TIME_LIMIT_MS:
        raise BadField(Reason.UNIT, f"{value} must be in [0, {_TIME_LIMIT_MS})")
    return value


def _names(files: Sequence[Path]) -> str:
    return ", ".join(file.name for file in files)
