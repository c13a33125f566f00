"""A consumer in a process of its own that kills itself where it is told; ends when nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from stream_sinks import StoreSink

from relaygr.config.settings import StoreConfig
from relaygr.config.stream import StreamConfig
from relaygr.data.stores import open_store
from relaygr.data.streams.redis import RedisStream
from relaygr.serving.stream.apply import Applier
from relaygr.serving.stream.consumer import Consumer
from relaygr.serving.stream.counts import Counts


class Deadly:
    """Kills the process at the call with that number, from 1; 0 is never."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyStream(RedisStream):
    """Dies in front of an acknowledgement."""

    before = Deadly(0)

    async def acknowledge(self, stream: str, offsets: Sequence[int]) -> None:
        self.before()
        await super().acknowledge(stream, offsets)


async def main() -> None:
    url, place, streams, where, at = sys.argv[1:]
    settings = StreamConfig(
        url=url, streams=tuple(streams.split(",")), batch=8, block_ms=20, claim_idle_ms=100, retry_ms=1
    )
    dying = Deadly(int(at))
    stream = DeadlyStream(settings)
    if where == "before":
        stream.before = dying
    store = open_store(place, StoreConfig(keys_per_user=1, dedupe_events=0))
    sink = StoreSink(store, dying if where == "append" else lambda: None)
    consumer = Consumer(stream, Applier(stream, sink, settings, Counts(settings.streams)), settings)
    consumer.start()
    while len(consumer.counts.assigned) < len(settings.streams) or any(
        one.entries for one in await stream.lag()
    ):
        await asyncio.sleep(0.01)
    await consumer.stop(5.0)
    store.close()


if __name__ == "__main__":
    asyncio.run(main())
