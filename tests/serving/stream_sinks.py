"""Sinks of the tests' own, and events in streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import numpy as np

from relaygr.core.errors import RelayError, RequestError
from relaygr.data.stores import EventBatch, HistoryStore, Source
from relaygr.data.streams.interface import parse_offset
from relaygr.serving import wire


def fields(user: str, number: int, **more: bytes) -> dict[str, bytes]:
    """An event whose item says which it is."""
    item, timestamp = str(number).encode(), str(1_700_000_000 + number).encode()
    return {"user": user.encode(), "item": item, "timestamp": timestamp, **more}


class StoreSink:
    """Appends to a store, as the service does, and then tells `told`."""

    def __init__(self, store: HistoryStore, told: Callable[[], None] = lambda: None) -> None:
        self._store, self._told = store, told

    async def append(self, tenant: str, body: wire.EventsBody) -> wire.EventsAnswer:
        columns = (body.items, body.timestamps, body.actions)
        events = EventBatch(*(np.asarray(column, np.int64) for column in columns))
        source = Source(body.source or "", tuple(map(parse_offset, body.offsets or ())))
        done = await asyncio.to_thread(self._store.append, tenant, body.user, events, body.key, None, source)
        self._told()
        return wire.EventsAnswer(
            body.user, done.sequence, done.accepted, done.duplicates, done.late, done.replayed
        )


class ListSink:
    """Remembers what it took; `answers` are raised one after the other first."""

    def __init__(self, answers: Iterable[RelayError] = (), refuses: Iterable[int] = ()) -> None:
        self.taken: list[tuple[str, str, int]] = []
        self.appends: list[tuple[int, ...]] = []
        self.answers, self.refuses = list(answers), set(refuses)
        self.open = asyncio.Event()
        self.open.set()
        self.busy = self.most_busy = 0

    def of(self, user: str) -> list[int]:
        return [item for _, one, item in self.taken if one == user]

    async def append(self, tenant: str, body: wire.EventsBody) -> wire.EventsAnswer:
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            if self.answers:
                raise self.answers.pop(0)
            bad = self.refuses & set(body.items)
            if bad:
                raise RequestError("items", f"{min(bad)} is nothing")
            self.appends.append(tuple(body.items))
            self.taken += [(tenant, body.user, item) for item in body.items]
            return wire.EventsAnswer(body.user, len(self.taken), len(body.items), 0, 0, False)
        finally:
            self.busy -= 1
