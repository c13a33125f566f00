"""Reads the streams that are this server's, one task each; nothing more is read than what can be appended."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from relaygr.config.stream import StreamConfig
from relaygr.core.errors import RelayError
from relaygr.data.streams import EventStream, StreamLostError
from relaygr.serving.stream.apply import Applier, pause_s
from relaygr.serving.stream.counts import Told

log = logging.getLogger("relaygr.serving")

# Heartbeats within the time after which a consumer counts as dead.
_BEATS = 4


class Consumer:
    """Keeps a reader for each stream that is ours; belongs to one event loop.

    Attributes:
        counts: of everything that happened.
    """

    def __init__(self, stream: EventStream, applier: Applier, settings: StreamConfig) -> None:
        self._stream, self._applier, self._settings = stream, applier, settings
        self.counts = applier.counts
        self._readers: dict[str, _Reader] = {}
        self._task: asyncio.Task[None] | None = None
        self._lag_due_s = 0.0

    def start(self) -> None:
        """Begin; an unreachable server is tried again until it is there."""
        self.counts.state = "unreachable"
        self._task = asyncio.create_task(self._run(), name="event stream")
        self._task.add_done_callback(self._ended)

    async def stop(self, timeout_s: float) -> None:
        """Read nothing more, finish the batches that were read, leave the streams to others.

        What is not finished in time is read again by whoever has the stream next.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for reader in self._readers.values():
            reader.stop()
        tasks = [reader.task for reader in self._readers.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)
        self._readers.clear()
        self.counts.state, self.counts.leases = "stopped", {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                await self._stream.close()

    async def _run(self) -> None:
        failures = 0
        while True:
            wait_s = self._settings.claim_idle_ms / 1000 / _BEATS
            try:
                await self._beat()
            except RelayError as error:
                if not failures:
                    log.warning("event stream: %s: %s", type(error).__name__, error)
                wait_s = min(pause_s(self._settings, failures, error), wait_s)
                failures += 1
                self.counts.reconnects += 1
                self.counts.state = "unreachable"
            else:
                if self.counts.state != "reading":
                    log.info("event stream: reading %d of %d", len(self._readers), len(self._stream.streams))
                failures, self.counts.state = 0, "reading"
            await asyncio.sleep(wait_s)

    async def _beat(self) -> None:
        lease_s, asked_s = self._settings.claim_idle_ms / 1000, self.counts.clock.now_s()
        ours = await self._stream.assigned()
        for name, reader in list(self._readers.items()):
            if name not in ours:
                reader.stop()
            if reader.task.done():
                reader.told()
                del self._readers[name]
                if name not in ours:
                    await self._stream.release(name)
        for name in ours - self._readers.keys():
            self._readers[name] = _Reader(name, self._stream, self._applier, self._settings)
        self.counts.leases = dict.fromkeys(ours, asked_s + lease_s)
        asked_s = self.counts.clock.now_s()
        if asked_s >= self._lag_due_s:
            found = await self._stream.lag()
            self._lag_due_s = asked_s + self._settings.lag_s
            until_s = self._lag_due_s + lease_s
            self.counts.lag |= {lag.stream: Told(lag, asked_s, until_s) for lag in found}

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.counts.state = "stopped"
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("event stream: stopped by %s", type(error).__name__, exc_info=error)


class _Reader:
    """The task of one stream, and whether it is in the middle of a batch."""

    def __init__(self, name: str, stream: EventStream, applier: Applier, settings: StreamConfig) -> None:
        self._name, self._stream, self._applier, self._settings = name, stream, applier, settings
        self._stopping = self._applying = False
        self.task = asyncio.create_task(self._run(), name=f"stream {name}")

    def stop(self) -> None:
        """Read nothing more; a batch that was read is finished."""
        self._stopping = True
        if not self._applying:
            self.task.cancel()

    def told(self) -> None:
        """Log what ended the task, if it is an error; it begins anew while the stream is ours."""
        if not self.task.cancelled() and (error := self.task.exception()) is not None:
            log.error("stream %s: failed with %s", self._name, type(error).__name__, exc_info=error)

    async def _run(self) -> None:
        try:
            await self._read()
        finally:
            self._applier.counts.failing.discard(self._name)

    async def _read(self) -> None:
        failures, counts = 0, self._applier.counts
        while not self._stopping:
            try:
                asked_s = counts.clock.now_s()
                entries = await self._stream.read(self._name)
                counts.leases[self._name] = asked_s + self._settings.claim_idle_ms / 1000
                self._applying = True
                if entries:
                    await self._applier.apply(self._name, entries)
            except StreamLostError:
                counts.leases.pop(self._name, None)
                return
            except RelayError as error:
                self._applying = False
                if not failures:
                    log.warning("stream %s: %s: %s", self._name, type(error).__name__, error)
                counts.failing.add(self._name)
                counts.reconnects += 1
                await asyncio.sleep(pause_s(self._settings, failures, error))
                failures += 1
            else:
                self._applying, failures = False, 0
                counts.failing.discard(self._name)
