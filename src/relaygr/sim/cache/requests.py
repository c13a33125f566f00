"""The trace format of our own: one request a line, in JSON."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError, DataError
from relaygr.sim.cache.trace import Trace, peaks

MAX_LINE_BYTES = 1 << 24
MAX_TOKENS = 1 << 30
UNREADABLE = (OSError, EOFError, zlib.error)
_TIME_LIMIT_MS = 10**14


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line.

    Attributes:
        t_ms: milliseconds since 1970, or since anything.
        length: history tokens; or
        events: the history itself, as item ids, oldest first.
        same: of `length`, how many tokens are as in the user's longest history so far; all that can be if it
            is not given. `events` tell it by themselves.
    """

    t_ms: int
    tenant: str = "default"
    user: str | int
    length: int | None = None
    events: list[int] | None = None
    same: int | None = None


class _User:
    """What is known of a user's history: its length, and its events if they were given."""

    __slots__ = ("events", "index", "length")

    def __init__(self, index: int) -> None:
        self.index, self.length = index, 0
        self.events: list[int] = []

    def take(self, request: Request) -> tuple[int, int]:
        """Length and unchanged part of the next request; ValueError says what is wrong with it."""
        if (request.length is None) == (request.events is None):
            raise ValueError("length: either this or events must be given")
        if request.events is None:
            length = request.length or 0
            same = min(self.length, length) if request.same is None else request.same
            if not 0 <= length <= MAX_TOKENS:
                raise ValueError(f"length: {length} must be in [0, {MAX_TOKENS}]")
            if not 0 <= same <= min(self.length, length):
                raise ValueError(f"same: {same} must be in [0, {min(self.length, length)}]")
            events: list[int] = []
        else:
            events, length = request.events, len(request.events)
            same = _common(self.events, events)
        if same < length:
            self.length, self.events = length, events
        return length, same


def read_requests(file: Path) -> Trace:
    """Read a trace, gzip or not; requests are sorted by time, and those of one time keep their order.

    Raises:
        DataError: naming the line and what is wrong with it.
    """
    requests = list(_lines(file))
    if not requests:
        raise DataError(str(file), 0, "", "there are no requests")
    order = sorted(range(len(requests)), key=lambda at: requests[at][1].t_ms)
    known: dict[tuple[str, str], _User] = {}
    columns: list[list[int]] = [[], [], [], []]
    for at in order:
        line, request = requests[at]
        user = known.setdefault((request.tenant, str(request.user)), _User(len(known)))
        try:
            length, same = user.take(request)
        except ValueError as error:
            field, _, reason = str(error).partition(": ")
            raise DataError(str(file), line, field, reason) from error
        for column, value in zip(columns, (request.t_ms, user.index, length, same), strict=True):
            column.append(value)
    time_ms, users, length_column, same_column = (np.array(column, np.int64) for column in columns)
    return Trace(
        name=file.name,
        time_ms=time_ms,
        user=users,
        length=length_column,
        same=same_column,
        users=len(known),
        base_tokens=int(peaks(users, length_column, len(known)).sum()),
    )


def write_requests(file: Path, trace: Trace, option: str = "--out") -> None:
    """Write a trace, in gzip if the name ends in .gz; ConfigError, naming `option`, when that fails."""
    encode = msgspec.json.encode
    longest = [0] * trace.users
    columns = (trace.time_ms, trace.user, trace.length, trace.same)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Without a time in it, so that the same trace is the same file.
        plain_file = file.suffix != ".gz"
        with file.open("wb") if plain_file else gzip.GzipFile(file, "wb", mtime=0) as stream:
            for t_ms, user, length, same in zip(*(column.tolist() for column in columns), strict=True):
                plain = same == min(longest[user], length)
                longest[user] = length if same < length else longest[user]
                request = Request(t_ms=t_ms, user=user, length=length, same=None if plain else same)
                stream.write(encode(request) + b"\n")
    except OSError as error:
        raise ConfigError(option, f"{file} cannot be written: {error.strerror}") from error


def _lines(file: Path) -> Iterator[tuple[int, Request]]:
    decode = msgspec.json.Decoder(Request).decode
    number = 0
    try:
        with open_zipped(file) as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise DataError(str(file), number, "", f"line has more than {MAX_LINE_BYTES} bytes")
                if not line.strip():
                    continue
                try:
                    request = decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise DataError(str(file), number, "", str(error)) from error
                if not 0 <= request.t_ms < _TIME_LIMIT_MS:
                    raise DataError(
                        str(file), number, "t_ms", f"{request.t_ms} must be in [0, {_TIME_LIMIT_MS})"
                    )
                yield number, request
    except UNREADABLE as error:
        raise DataError(str(file), number, "", getattr(error, "strerror", None) or str(error)) from error


def open_zipped(file: Path) -> IO[bytes]:
    """Open for reading; gzip is recognised by its first byte. Raises what is in `UNREADABLE`, as reads do."""
    with file.open("rb") as stream:
        zipped = stream.read(1) == b"\x1f"
    return cast(IO[bytes], gzip.open(file)) if zipped else file.open("rb")


def _common(one: list[int], other: list[int]) -> int:
    """The length of the common prefix."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most  # the prefixes of length low are equal, those of length high are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
