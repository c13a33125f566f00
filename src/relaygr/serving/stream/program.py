"""A program that reads an event stream between its start and its end."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from relaygr.config.settings import Config
from relaygr.data.streams import open_stream
from relaygr.serving.process import Program
from relaygr.serving.stream.apply import Applier
from relaygr.serving.stream.consumer import Consumer
from relaygr.serving.stream.counts import Counts, StreamMetrics
from relaygr.serving.stream.sinks import Sink

_STOP_S = 2.0


class Consuming:
    """Starts behind the program that takes the events, and stops in front of it."""

    def __init__(self, program: Program, config: Config, sink: Sink, registry: CollectorRegistry) -> None:
        """ConfigError for a stream that cannot be."""
        settings = config.stream
        self._program, self.counts = program, Counts(settings.streams)
        tenants = frozenset(entry.tenant for entry in config.serving.keys) or None
        stream = open_stream(settings)
        self._consumer = Consumer(stream, Applier(stream, sink, settings, self.counts, tenants), settings)
        registry.register(StreamMetrics(self.counts))

    async def start(self) -> None:
        await self._program.start()
        self._consumer.start()

    async def drain(self, timeout_s: float) -> bool:
        await self._consumer.stop(min(timeout_s, _STOP_S))
        return await self._program.drain(timeout_s)
