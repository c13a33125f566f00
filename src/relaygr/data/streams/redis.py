"""Streams on a Redis server, read by a consumer group; needs redis, the extra `streams`."""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from relaygr.config.stream import StreamConfig
from relaygr.core.errors import BackendError, ConfigError
from relaygr.data.redis_url import named_errors, place_of
from relaygr.data.streams.interface import (
    Entry,
    EventStream,
    Lag,
    StreamLostError,
    format_offset,
    parse_offset,
)
from relaygr.data.streams.scripts import ASSIGN, LAG, READ, REJECT, RELEASE, TIDY

log = logging.getLogger("relaygr.data")

_RETRY_MS = 1000.0
_LEAST_VERSION = 7
_FORGET_MS = 86_400_000
_READ_BYTES = 16 << 20  # of one read, where it is more than one entry
# Of a dead letter; a script cannot take any number of fields.
_FIELDS_MAX = 64
_PART_BYTES, _LETTER_BYTES = 1024, 8192


class RedisStream(EventStream):
    """See `EventStream`. Leases on the server say whose a stream is, and every read asks for its lease.

    A reader blocks with a plain XREAD, which changes nothing, and then reads for the group in a script that
    checks the lease: a consumer that was paused for longer than its lease would otherwise take entries that
    belong behind those that its successor works on.
    """

    def __init__(self, settings: StreamConfig) -> None:
        """ConfigError, of `stream.url`: no redis package, or a bad URL. Connects with the first call."""
        try:
            import redis
            import redis.asyncio
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ModuleNotFoundError as error:
            raise ConfigError("stream.url", "redis:// needs redis: pip install 'relaygr[streams]'") from error
        place = place_of(settings.url, "stream.url")
        self._name, self._settings = f"the event stream at {place}", settings
        self._redis_error, self._response = redis.RedisError, redis.exceptions.ResponseError
        self._no_script = redis.exceptions.NoScriptError
        self._timed_out = redis.exceptions.TimeoutError
        self._unreachable = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)
        wait_s = settings.timeout_ms / 1000
        try:
            self._client = redis.asyncio.Redis.from_url(
                settings.url,
                protocol=2,
                socket_timeout=wait_s + settings.block_ms / 1000,
                socket_connect_timeout=wait_s,
                health_check_interval=30,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise ConfigError("stream.url", f"{place}: {error}") from error
        self._call: Callable[..., Awaitable[Any]] = self._client.execute_command
        self._consumer = settings.consumer or socket.gethostname() or "relaygr"
        self._token = f"{self._consumer}:{secrets.token_hex(8)}"
        self._begin = "$" if settings.first == "newest" else "0"
        self._checked = self._closed = False
        self._made: set[str] = set()
        # What was read and not acknowledged; None where nobody knows what was read before.
        self._unsettled: dict[str, set[int] | None] = {}
        # Entries of the next read: fewer after one that was too large.
        self._batch = dict.fromkeys(settings.streams, settings.batch)
        self._trimmed = dict.fromkeys(settings.streams, 0)
        self._gaps = dict.fromkeys(settings.streams, 0)

    @property
    def streams(self) -> tuple[str, ...]:
        return self._settings.streams

    async def assigned(self) -> frozenset[str]:
        with self._named_errors():
            await self._check_server()
            leases = [self._lease(stream) for stream in self.streams]
            places = await self._script(
                ASSIGN, [self._members, *leases], [self._token, self._settings.claim_idle_ms]
            )
            ours = frozenset(self.streams[int(place) - 1] for place in places)
            for stream in ours - self._made:
                # One stream that cannot be read must not hide the others; its read says what is wrong.
                with suppress(self._response):
                    await self._make_group(stream, self._begin)
        for stream in ours:
            self._unsettled.setdefault(stream, None)
        return ours

    async def release(self, stream: str) -> None:
        self._unsettled.pop(stream, None)
        with self._named_errors():
            await self._script(RELEASE, [self._lease(stream)], [self._token])

    async def read(self, stream: str) -> Sequence[Entry]:
        settings = self._settings
        if stream not in self._unsettled:
            raise StreamLostError(f"{self._name}: {stream} is not ours")
        before, self._unsettled[stream] = self._unsettled[stream], None
        again = before is None or bool(before)
        with self._named_errors():
            try:
                kind, *found = await self._read(stream, again)
            except self._timed_out:
                self._batch[stream] = max(self._batch[stream] // 2, 1)
                raise
            if kind == b"none":
                if again:
                    await self._script(TIDY, [stream], [settings.group, self._consumer, _FORGET_MS])
                self._unsettled[stream] = set()
                await self._client.xread({stream: found[0]}, count=1, block=settings.block_ms)
                return ()
        if kind == b"lost":
            del self._unsettled[stream]
            raise StreamLostError(f"{self._name}: {stream} is another consumer's")
        entries, removed, cut = found
        self._batch[stream] = len(entries) if cut else min(self._batch[stream] * 2, settings.batch)
        if removed:
            self._trimmed[stream] += len(removed)
            log.warning("%s: %d entries of %s were removed unread", self._name, len(removed), stream)
        got = [Entry(stream, parse_offset(identity.decode()), _fields(pairs)) for identity, pairs in entries]
        # Of what was read before there may be more behind these.
        self._unsettled[stream] = None if again or cut else {entry.offset for entry in got}
        return got

    async def acknowledge(self, stream: str, offsets: Sequence[int]) -> None:
        if not offsets:
            return
        with self._named_errors():
            await self._client.xack(stream, self._settings.group, *map(format_offset, offsets))
        self._settle(stream, offsets)

    async def reject(self, entry: Entry, reason: str) -> None:
        settings, identity = self._settings, format_offset(entry.offset)
        error = reason.encode(errors="backslashreplace")[:_PART_BYTES]
        letter: list[bytes | str] = ["dead.stream", entry.stream, "dead.id", identity, "dead.error", error]
        kept, size = _kept(entry)
        if sum(map(len, kept)) < size:
            letter += ["dead.fields", str(len(entry.fields)), "dead.bytes", str(size)]
        letter += kept
        with self._named_errors():
            await self._script(
                REJECT,
                [settings.dead_letter, entry.stream],
                [settings.dead_letter_max, settings.group, identity, *letter],
            )
        self._settle(entry.stream, [entry.offset])

    async def lag(self) -> tuple[Lag, ...]:
        found: list[Lag] = []
        with self._named_errors():
            wrong: Exception | None = None
            for stream in self.streams:
                try:
                    answer = await self._script(LAG, [stream], [self._settings.group, self._begin])
                except self._response as error:
                    wrong = error
                    continue
                pending, unread, length, age_ms, gap = map(int, answer)
                if stream in self._unsettled:
                    self._trimmed[stream] += max(gap - self._gaps[stream], 0)
                self._gaps[stream] = gap
                entries = pending + (length if unread < 0 else unread - gap)
                found.append(Lag(stream, entries, age_ms / 1000, self._trimmed[stream]))
            if wrong and not found:
                raise wrong
        return tuple(found)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            for stream in self.streams:
                await self._script(RELEASE, [self._lease(stream)], [self._token])
            await self._client.zrem(self._members, self._token)
        except (self._redis_error, OSError) as error:
            # Others take over when the leases end.
            log.warning("%s: closed without its answer: %s", self._name, type(error).__name__)
        finally:
            self._unsettled.clear()
            await self._client.aclose()

    @property
    def _members(self) -> str:
        return f"relaygr:consumers:{self._settings.group}"

    def _lease(self, stream: str) -> str:
        return f"relaygr:lease:{self._settings.group}:{stream}"

    def _settle(self, stream: str, offsets: Sequence[int]) -> None:
        known = self._unsettled.get(stream)
        if known is not None:
            known.difference_update(offsets)

    async def _check_server(self) -> None:
        if self._checked:
            return
        version = str((await self._client.info("server"))["redis_version"])
        if int(version.partition(".")[0]) < _LEAST_VERSION:
            raise BackendError(f"{self._name} is of version {version}, {_LEAST_VERSION}.0 is needed")
        self._checked = True

    async def _make_group(self, stream: str, begin: str) -> None:
        try:
            await self._client.xgroup_create(stream, self._settings.group, begin, mkstream=True)
        except self._response as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._made.add(stream)

    async def _read(self, stream: str, again: bool) -> list[Any]:
        settings = self._settings
        keys = [stream, self._lease(stream)]
        arguments: list[bytes | str | int] = [
            *(self._token, settings.claim_idle_ms, settings.group, self._consumer, self._batch[stream]),
            *(int(again), _READ_BYTES),
        ]
        try:
            return list(await self._script(READ, keys, arguments))
        except self._response as error:
            if "NOGROUP" not in str(error):
                raise
        if stream in self._made:
            # Its server began anew or somebody removed it: whatever is there is read, what was done is known.
            log.warning("%s: the group of %s was gone and is made again", self._name, stream)
        await self._make_group(stream, "0" if stream in self._made else self._begin)
        return list(await self._script(READ, keys, arguments))

    async def _script(self, script: str, keys: Sequence[str], arguments: Sequence[bytes | str | int]) -> Any:
        name = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._call("EVALSHA", name, len(keys), *keys, *arguments)
        except self._no_script:
            return await self._call("EVAL", script, len(keys), *keys, *arguments)

    def _named_errors(self) -> AbstractContextManager[None]:
        return named_errors(self._name, self._unreachable, self._redis_error)


def _kept(entry: Entry) -> tuple[list[bytes], int]:
    """Names and values as a dead letter has them, and the bytes of all there are."""
    kept: list[bytes] = []
    size, room = 0, _LETTER_BYTES
    for name, value in entry.fields.items():
        parts = (name.encode(errors="surrogateescape"), value)
        size += sum(map(len, parts))
        if len(kept) < 2 * _FIELDS_MAX and room:
            for part in parts:
                kept.append(part[: min(_PART_BYTES, room)])
                room -= len(kept[-1])
    return kept, size


def _fields(pairs: Sequence[bytes]) -> dict[str, bytes]:
    """Of fields that are there twice the last one counts; names that are no UTF-8 stay what they are."""
    names = (name.decode(errors="surrogateescape") for name in pairs[::2])
    return dict(zip(names, pairs[1::2], strict=True))
