"""A consumer over streams in memory, for tests of what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from stream_sinks import ListSink

from relaygr.config.stream import StreamConfig
from relaygr.core.clock import MonotonicClock
from relaygr.core.errors import OverloadError
from relaygr.data.streams.memory import MemoryBroker, MemoryStream
from relaygr.serving.stream.apply import Applier
from relaygr.serving.stream.consumer import Consumer
from relaygr.serving.stream.counts import Counts

SETTINGS = StreamConfig(
    streams=("a", "b"), claim_idle_ms=400, retry_ms=1, retry_max_ms=4, appends_max=4, batch=8, lag_s=0.01
)


class Waiting(MemoryStream):
    """Waits a moment where there is nothing, and fails as often as it is told."""

    failures = 0

    async def read(self, stream: str) -> Any:
        if self.failures:
            type(self).failures -= 1
            raise OverloadError("the server is away", 1.0)
        found = await super().read(stream)
        if not found:
            await asyncio.sleep(0.001)
        return found


class Running:
    def __init__(self, sink: ListSink, tenants: Collection[str] | None = None) -> None:
        self.sink = sink
        self.broker = MemoryBroker(SETTINGS.streams, MonotonicClock(), SETTINGS.claim_idle_ms / 1000)
        self.counts = Counts(SETTINGS.streams)
        stream = Waiting(self.broker, "one", SETTINGS.batch)
        applier = Applier(stream, sink, SETTINGS, self.counts, tenants)
        self.consumer = Consumer(stream, applier, SETTINGS)

    @property
    def left(self) -> int:
        return sum(len(shard.entries) for shard in self.broker.shards.values())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)

    async def settled(self) -> None:
        await self.until(lambda: not self.left)


@asynccontextmanager
async def running(sink: ListSink | None = None, **more: Any) -> AsyncIterator[Running]:
    found = Running(sink or ListSink(), **more)
    found.consumer.start()
    try:
        yield found
    finally:
        await found.consumer.stop(1.0)
