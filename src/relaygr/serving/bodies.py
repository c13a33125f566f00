"""From what was sent to what the store and the engine take."""

from __future__ import annotations

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.data.stores import EventBatch
from relaygr.engine import UserHistory
from relaygr.serving.users import Owner
from relaygr.serving.wire import EventsBody, History


def event_batch(body: EventsBody) -> EventBatch:
    """Events to append; RequestError if the columns differ in length or a value is out of range."""
    count = len(body.items)
    actions = np.ones(count, np.int64) if body.actions is None else np.asarray(body.actions, np.int64)
    return EventBatch(np.asarray(body.items, np.int64), np.asarray(body.timestamps, np.int64), actions)


def inline_history(owner: Owner, sent: History, slots: int, limit: int) -> UserHistory:
    """The history that came with a request; a profile that is not there is `slots` zeros.

    Raises:
        RequestError: more than `limit` events, or columns that are no history.
    """
    if len(sent.items) > limit:
        raise RequestError("history.items", f"{len(sent.items)} events, limit {limit}")
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
