"""From what was sent to what the store and the engine take."""

from __future__ import annotations

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.core.ids import check_name
from relaygr.data.stores import EventBatch, Source
from relaygr.data.streams.interface import parse_offset
from relaygr.engine import UserHistory
from relaygr.serving.users import Owner
from relaygr.serving.wire import EventsBody, History


def owner_of(tenant: str, user: str) -> Owner:
    """RequestError for what is no name; the two end up in paths, logs and files."""
    return _name("tenant", tenant), _name("user", user)


def event_batch(body: EventsBody) -> EventBatch:
    """Events to append; RequestError if the columns differ in length or a value is out of range."""
    count = len(body.items)
    actions = np.ones(count, np.int64) if body.actions is None else np.asarray(body.actions, np.int64)
    return EventBatch(np.asarray(body.items, np.int64), np.asarray(body.timestamps, np.int64), actions)


def source_of(body: EventsBody) -> Source | None:
    """Where the events stand in their stream; RequestError for a source without offsets, or the converse."""
    if body.source is None and body.offsets is None:
        return None
    if body.source is None or body.offsets is None:
        raise RequestError("source" if body.source is None else "offsets", "is missing: both or neither")
    return Source(body.source, tuple(map(parse_offset, body.offsets)))


def inline_history(owner: Owner, sent: History, slots: int, limit: int) -> UserHistory:
    """The history that came with a request; a profile that is not there is `slots` zeros.

    Raises:
        RequestError: more than `limit` events, or columns that are no history.
    """
    if len(sent.items) > limit:
        raise RequestError("history.items", f"{len(sent.items)} events, limit {limit}")
    try:
        return UserHistory(
            owner[1],
            sent.items,
            sent.timestamps,
            sent.actions,
            tenant_name=owner[0],
            contextual=sent.contextual or np.zeros(slots, np.int64),
            utc_offset_s=sent.utc_offset_s,
            first_sequence=sent.first_sequence,
        )
    except RequestError as error:
        raise RequestError(f"history.{error.field}", error.reason) from error


def _name(field: str, value: str) -> str:
    """A name without control characters: paths and logs could not tell some of them apart."""
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise RequestError(field, f"{value[:64]!r} contains a control character")
    return check_name(field, value)
