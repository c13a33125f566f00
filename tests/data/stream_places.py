"""The places that every test of the contract of event streams runs on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import redis

from relaygr.config.stream import StreamConfig
from relaygr.core.clock import ManualClock
from relaygr.data.streams import EventStream
from relaygr.data.streams.interface import format_offset, parse_offset
from relaygr.data.streams.memory import MemoryBroker, MemoryStream
from relaygr.data.streams.redis import RedisStream

Result = TypeVar("Result")
BATCH = 3


class Place(ABC):
    """Streams that consumers of a test share; works on a loop of its own."""

    name: str

    def __init__(self, streams: Sequence[str]) -> None:
        self.streams = tuple(streams)
        self.loop = asyncio.new_event_loop()
        self.opened: list[EventStream] = []

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def open(self, name: str, **settings: Any) -> EventStream:
        stream = self.make(name, **settings)
        self.opened.append(stream)
        return stream

    def close(self) -> None:
        for stream in self.opened:
            self.do(stream.close())
        self.loop.close()

    @abstractmethod
    def make(self, name: str, **settings: Any) -> EventStream: ...

    @abstractmethod
    def add(self, stream: str, at: int, fields: Mapping[str, bytes]) -> None:
        """Put an entry with the offset `at` at the end."""

    @abstractmethod
    def expire(self, name: str) -> None:
        """The consumer was not heard of for too long."""

    @abstractmethod
    def dead(self) -> list[tuple[str, int, str]]:
        """Stream, offset and reason of dead letters."""


class MemoryPlace(Place):
    name = "memory"

    def __init__(self, streams: Sequence[str]) -> None:
        super().__init__(streams)
        self.clock = ManualClock()
        self.broker = MemoryBroker(streams, self.clock, 1000.0)

    def make(self, name: str, **settings: Any) -> EventStream:
        return MemoryStream(self.broker, name, BATCH)

    def add(self, stream: str, at: int, fields: Mapping[str, bytes]) -> None:
        self.broker.shards[stream].next_offset = at
        self.broker.add(stream, fields)

    def expire(self, name: str) -> None:
        self.broker.heard.pop(name, None)
        for shard in self.broker.shards.values():
            if shard.owner == name:
                shard.owner = None

    def dead(self) -> list[tuple[str, int, str]]:
        return [(entry.stream, entry.offset, reason) for entry, reason in self.broker.dead]


class RedisPlace(Place):
    name = "redis"

    def __init__(self, streams: Sequence[str], url: str) -> None:
        super().__init__(streams)
        self.url = url
        self.client: Any = redis.Redis.from_url(url)

    def settings(self, name: str = "one", **more: Any) -> StreamConfig:
        return StreamConfig(
            **{
                "url": self.url, "streams": self.streams, "consumer": name, "batch": BATCH, "block_ms": 1,
                "claim_idle_ms": 1_000_000, **more,
            }
        )  # fmt: skip

    def make(self, name: str, **settings: Any) -> EventStream:
        return RedisStream(self.settings(name, **settings))

    def add(self, stream: str, at: int, fields: Mapping[str, bytes]) -> None:
        self.client.xadd(stream, dict(fields), format_offset(at))

    def expire(self, name: str) -> None:
        for member in self.client.zrange("relaygr:consumers:relaygr", 0, -1):
            if member.startswith(f"{name}:".encode()):
                self.client.zrem("relaygr:consumers:relaygr", member)
                for stream in self.streams:
                    if self.client.get(f"relaygr:lease:relaygr:{stream}") == member:
                        self.client.delete(f"relaygr:lease:relaygr:{stream}")

    def dead(self) -> list[tuple[str, int, str]]:
        letters = [fields for _, fields in self.client.xrange("relaygr:dead")]
        return [
            (
                one[b"dead.stream"].decode(),
                parse_offset(one[b"dead.id"].decode()),
                one[b"dead.error"].decode(),
            )
            for one in letters
        ]

    def close(self) -> None:
        super().close()
        with closing(self.client):
            self.client.flushall()
