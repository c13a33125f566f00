"""One batch of entries: users beside one another, each in order, until all of it is done for good."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

from relaygr.config.stream import StreamConfig
from relaygr.core.errors import OverloadError, RelayError, RequestError
from relaygr.data.streams import Entry, EventStream, StreamEvent, event_of, format_offset
from relaygr.serving import wire
from relaygr.serving.errors import HttpError
from relaygr.serving.stream.counts import Counts
from relaygr.serving.stream.sinks import Sink, refused

log = logging.getLogger("relaygr.serving")


class Placed(NamedTuple):
    """An event and the entry it came in."""

    entry: Entry
    event: StreamEvent


class Applier:
    """Appends what was read. What is no event is rejected; what cannot be appended now is tried again.

    Attributes:
        counts: of everything it does.
    """

    def __init__(
        self,
        stream: EventStream,
        sink: Sink,
        settings: StreamConfig,
        counts: Counts,
        tenants: Collection[str] | None = None,
    ) -> None:
        """`tenants` are those that events may be of; None sets no limit."""
        self._stream, self._sink, self._settings, self.counts = stream, sink, settings, counts
        self._tenants = tenants
        self._turns = asyncio.Semaphore(settings.appends_max)

    async def apply(self, stream: str, entries: Sequence[Entry]) -> None:
        """All `entries` of `stream` are appended or rejected, and acknowledged, when this returns.

        May be cancelled or fail anywhere: what is not acknowledged is to be applied again, and what of it was
        appended is known.

        Raises:
            RelayError: of the stream.
        """
        self.counts.read[stream] += len(entries)
        users: dict[tuple[str, str], list[Placed]] = {}
        for entry in entries:
            try:
                placed = Placed(entry, self._event(entry))
            except RequestError as error:
                await self._reject(entry, error)
            except Exception as error:
                log.exception("%s: not understood", _where(entry))
                await self._reject(entry, RequestError("entry", f"not understood: {error!r:.200}"))
            else:
                users.setdefault((placed.event.tenant, placed.event.user), []).append(placed)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._user(stream, run)) for run in users.values()]
        except ExceptionGroup as group_error:
            first = group_error.exceptions[0]
            raise first from group_error
        await self._stream.acknowledge(stream, sorted(offset for task in tasks for offset in task.result()))

    def _event(self, entry: Entry) -> StreamEvent:
        event = event_of(entry)
        if self._tenants is not None and event.tenant not in self._tenants:
            raise RequestError("tenant", f"{event.tenant[:64]!r} has no key in serving.keys")
        return event

    async def _user(self, stream: str, run: Sequence[Placed]) -> list[int]:
        """Offsets to acknowledge, of events of one user."""
        async with self._turns:
            done: list[int] = []
            for part in _parts(run):
                done += await self._append(stream, part)
            return done

    async def _append(self, stream: str, part: Sequence[Placed]) -> list[int]:
        event, body = part[0].event, _body(stream, part)
        try:
            answer = await self._until_done(event.tenant, body)
        except (RequestError, HttpError) as error:
            if len(part) == 1:
                await self._reject(part[0].entry, error)
                return []
            # One of them is wrong; the others are not.
            return [offset for one in part for offset in await self._append(stream, [one])]
        fresh = 0 if answer.replayed else answer.accepted
        self.counts.results[stream, "applied"] += fresh
        self.counts.results[stream, "duplicate"] += len(part) - fresh
        return [placed.entry.offset for placed in part]

    async def _until_done(self, tenant: str, body: wire.EventsBody) -> wire.EventsAnswer:
        """Raises only what will be so the next time as well."""
        tries = 0
        try:
            while True:
                try:
                    return await self._sink.append(tenant, body)
                except RelayError as error:
                    if refused(error):
                        raise
                    if not tries:
                        self.counts.waiting += 1
                        if self.counts.waiting == 1:
                            log.warning("streamed events wait: %s", type(error).__name__)
                    self.counts.retries += 1
                    await asyncio.sleep(pause_s(self._settings, tries, error))
                    tries += 1
        finally:
            if tries:
                self.counts.waiting -= 1

    async def _reject(self, entry: Entry, error: RequestError | HttpError) -> None:
        where = _where(entry)
        try:
            await self._stream.reject(entry, f"{where}: {error}")
        except RelayError:
            raise
        except Exception as wrong:
            # The entry cannot be kept as it is; others are behind it.
            log.exception("%s: cannot be kept", where)
            bare = Entry(entry.stream, entry.offset, {})
            await self._stream.reject(bare, f"{where}: cannot be kept: {type(wrong).__name__}")
        self.counts.results[entry.stream, "dead"] += 1
        # The value may be somebody's name; it stands in the dead letter.
        log.warning("%s: field %s is wrong, see %s", where, error.field, self._settings.dead_letter)


def _where(entry: Entry) -> str:
    return f"stream {entry.stream}, entry {format_offset(entry.offset)}"


def pause_s(settings: StreamConfig, tries: int, error: RelayError) -> float:
    """How long to wait after so many failures: twice as long each time, and never all at the same moment."""
    longest = min(settings.retry_ms * 2.0 ** min(tries, 30), settings.retry_max_ms)
    least = min(error.retry_after_ms, settings.retry_max_ms) if isinstance(error, OverloadError) else 0.0
    return max(longest * random.uniform(0.5, 1.0), least if tries else 0.0) / 1000


def _parts(run: Sequence[Placed]) -> list[list[Placed]]:
    """What can be one append: events without keys that follow one another, else one event."""
    parts: list[list[Placed]] = []
    for placed in run:
        if parts and placed.event.key is None and parts[-1][0].event.key is None:
            parts[-1].append(placed)
        else:
            parts.append([placed])
    return parts


def _body(stream: str, part: Sequence[Placed]) -> wire.EventsBody:
    events = [placed.event for placed in part]
    return wire.EventsBody(
        user=events[0].user,
        items=[event.item for event in events],
        timestamps=[event.timestamp for event in events],
        actions=[event.actions for event in events],
        key=events[0].key,
        source=stream,
        offsets=[format_offset(placed.entry.offset) for placed in part],
    )
