"""Streams of user events: the contract is in `interface.py`; `open_stream` opens one by its URL."""

from relaygr.data.streams.events import StreamEvent, event_of
from relaygr.data.streams.interface import Entry, EventStream, Lag, StreamLostError, format_offset
from relaygr.data.streams.open import open_stream
from relaygr.data.streams.shards import shard_of

__all__ = [
    "Entry",
    "EventStream",
    "Lag",
    "StreamEvent",
    "StreamLostError",
    "event_of",
    "format_offset",
    "open_stream",
    "shard_of",
]
