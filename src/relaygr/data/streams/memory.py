"""Streams in this process: the contract of `EventStream` as plainly as it can be said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from relaygr.core.clock import Clock
from relaygr.data.streams.interface import Entry, EventStream, Lag, StreamLostError


@dataclass(slots=True)
class _Shard:
    entries: list[tuple[float, Entry]] = field(default_factory=list)  # not acknowledged, by offset
    next_offset: int = 1
    owner: str | None = None
    until_s: float = 0.0


class MemoryBroker:
    """What consumers share: streams, whose they are, dead letters."""

    def __init__(self, streams: Sequence[str], clock: Clock, lease_s: float) -> None:
        self.clock, self.lease_s = clock, lease_s
        self.shards = {name: _Shard() for name in streams}
        self.heard: dict[str, float] = {}
        self.dead: list[tuple[Entry, str]] = []

    def add(self, stream: str, fields: Mapping[str, bytes]) -> int:
        """Put an entry at the end; its offset."""
        shard = self.shards[stream]
        shard.entries.append((self.clock.now_s(), Entry(stream, shard.next_offset, fields)))
        shard.next_offset += 1
        return shard.next_offset - 1

    def owner(self, stream: str) -> str | None:
        shard = self.shards[stream]
        return shard.owner if self.clock.now_s() < shard.until_s else None


class MemoryStream(EventStream):
    """A consumer of a `MemoryBroker`; waits for nothing."""

    def __init__(self, broker: MemoryBroker, name: str, batch: int, idle: Callable[[], None] = lambda: None):
        """`idle` is called where a server would be waited for."""
        self._broker, self._name, self._batch, self._idle = broker, name, batch, idle

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self._broker.shards)

    async def assigned(self) -> frozenset[str]:
        broker = self._broker
        now_s = broker.clock.now_s()
        broker.heard[self._name] = now_s
        broker.heard = {name: at_s for name, at_s in broker.heard.items() if at_s > now_s - broker.lease_s}
        share = ceil(len(broker.shards) / len(broker.heard))
        held = [name for name in self.streams if broker.owner(name) == self._name]
        free = [name for name in self.streams if broker.owner(name) is None]
        ours = held[:share] + free[: max(share - len(held), 0)]
        for name in {*held, *ours}:
            shard = broker.shards[name]
            shard.owner, shard.until_s = self._name, now_s + broker.lease_s
        return frozenset(ours)

    async def release(self, stream: str) -> None:
        if self._broker.owner(stream) == self._name:
            self._broker.shards[stream].owner = None

    async def read(self, stream: str) -> Sequence[Entry]:
        broker = self._broker
        if broker.owner(stream) != self._name:
            raise StreamLostError(f"{stream} is not {self._name}'s")
        shard = broker.shards[stream]
        shard.until_s = broker.clock.now_s() + broker.lease_s
        found = [entry for _, entry in shard.entries[: self._batch]]
        if not found:
            self._idle()
        return found

    async def acknowledge(self, stream: str, offsets: Sequence[int]) -> None:
        shard = self._broker.shards[stream]
        shard.entries = [one for one in shard.entries if one[1].offset not in offsets]

    async def reject(self, entry: Entry, reason: str) -> None:
        self._broker.dead.append((entry, reason))
        await self.acknowledge(entry.stream, [entry.offset])

    async def lag(self) -> tuple[Lag, ...]:
        now_s = self._broker.clock.now_s()
        return tuple(
            Lag(name, len(shard.entries), now_s - shard.entries[0][0] if shard.entries else 0.0, 0)
            for name, shard in self._broker.shards.items()
        )

    async def close(self) -> None:
        for stream in self.streams:
            await self.release(stream)
        self._broker.heard.pop(self._name, None)
