"""Entries of streams as events."""

from __future__ import annotations

import re
from dataclasses import dataclass

from relaygr.core.errors import RequestError
from relaygr.core.ids import DEFAULT_TENANT, check_name
from relaygr.data.dataset import TIME_LIMIT_S
from relaygr.data.streams.interface import Entry

FIELDS = frozenset(("tenant", "user", "item", "timestamp", "actions", "key"))
_WHOLE = re.compile(rb"-?[0-9]{1,19}")
_SHOWN_BYTES = 64
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a user.

    Attributes:
        timestamp: Unix seconds.
        key: the producer's idempotency key.
    """

    tenant: str
    user: str
    item: int
    timestamp: int
    actions: int
    key: str | None


def event_of(entry: Entry) -> StreamEvent:
    """The event in the fields `user`, `item`, `timestamp`, and `tenant`, `actions`, `key` if they are there.

    Raises:
        RequestError: a field is missing, unknown or wrong; names it and its value.
    """
    fields = entry.fields
    for name in fields:
        if name not in FIELDS:
            raise RequestError(_shown(name), f"is none of {', '.join(sorted(FIELDS))}")
    for name in ("user", "item", "timestamp"):
        if name not in fields:
            raise RequestError(name, "is missing")
    return StreamEvent(
        _text("tenant", fields["tenant"]) if "tenant" in fields else DEFAULT_TENANT,
        _text("user", fields["user"]),
        _number("item", fields["item"], -_INT64, _INT64 - 1),
        _number("timestamp", fields["timestamp"], 0, TIME_LIMIT_S - 1),
        _number("actions", fields["actions"], 0, _INT64 - 1) if "actions" in fields else 1,
        _text("key", fields["key"]) if "key" in fields else None,
    )


def _shown(name: str) -> str:
    """A field's name for people: short, and text whatever it was."""
    return name.encode(errors="surrogateescape")[:_SHOWN_BYTES].decode(errors="backslashreplace")


def _text(field: str, value: bytes) -> str:
    try:
        return check_name(field, value.decode())
    except UnicodeDecodeError as error:
        raise RequestError(field, f"{value[:_SHOWN_BYTES]!r} is not UTF-8") from error


def _number(field: str, value: bytes, low: int, high: int) -> int:
    if not _WHOLE.fullmatch(value):
        shown = value[:_SHOWN_BYTES].decode(errors="backslashreplace")
        raise RequestError(field, f"{shown!r} is no whole number of 64 bits")
    number = int(value)
    if not low <= number <= high:
        raise RequestError(field, f"{number} is outside [{low}, {high}]")
    return number
