"""Requests of a load at little cost: kept connections, bodies made beforehand, answers timed as they come in.

A client library's own work, a good part of a millisecond a request, would be paid by the server on a machine
that both share.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable

from relaygr.core.errors import BackendError

Done = Callable[[int, bytes, float], None]
"""Status, body and time of an answer; status 0 if the connection was lost, or there was none to be had."""

# Below the 1,024 files that `select` can watch.
MOST_CONNECTIONS = 600
_LENGTH = b"content-length:"
_END = b"\r\n\r\n"

clock = time.perf_counter


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop whose timers are good to some microseconds: those of epoll are rounded up to milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def post(path: str, body: bytes) -> bytes:
    """A whole request."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def bare(method: str, path: str) -> bytes:
    """A whole request without a body."""
    return f"{method} {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()


class _Lane(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._done: Done | None = None
        self._got = b""
        self._whole = 0  # bytes of the answer, once its head is there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, request: bytes, done: Done) -> None:
        assert self._transport is not None
        self._done, self._got, self._whole = done, b"", 0
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        at_s = clock()
        self._got = self._got + data if self._got else data
        if not self._whole and not self._read_head():
            return
        if len(self._got) < self._whole:
            return
        done, got = self._done, self._got
        self._done, self._got = None, b""
        self._door.free(self)
        if done is not None:
            done(int(got[9:12]), got[got.index(_END) + len(_END) :], at_s)

    def connection_lost(self, error: Exception | None) -> None:
        self._door.lost(self)
        done, self._done = self._done, None
        if done is not None:
            done(0, b"", clock())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _read_head(self) -> bool:
        """False while a part of it is missing."""
        end = self._got.find(_END)
        if end < 0:
            return False
        head = self._got[:end].lower()
        place = head.find(_LENGTH)
        if place < 0:
            self.close()
            return False
        line = head[place + len(_LENGTH) :].split(b"\r\n", 1)[0]
        self._whole = end + len(_END) + int(line)
        return True


class Door:
    """Connections to one server; `async with` closes them. Belongs to one event loop."""

    def __init__(self, host: str, port: int, connections: int = 64) -> None:
        """So many connections are made beforehand; further ones when all are in use."""
        self._host, self._port, self._wanted = host, port, connections
        self._free: list[_Lane] = []
        self._lanes: set[_Lane] = set()
        self._making: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Door:
        await asyncio.gather(*(self._connect() for _ in range(self._wanted)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._making:
            task.cancel()
        for lane in list(self._lanes):
            lane.close()
        await asyncio.sleep(0)  # the transports end in the loop's next turn

    def send(self, request: bytes, done: Done) -> None:
        """Send at once; `done` is called later, exactly once."""
        if self._free:
            self._free.pop().send(request, done)
        elif len(self._lanes) + len(self._making) < MOST_CONNECTIONS:
            task = asyncio.get_running_loop().create_task(self._send_new(request, done))
            self._making.add(task)
            task.add_done_callback(self._making.discard)
        else:
            done(0, b"", clock())

    async def ask(self, request: bytes, timeout_s: float = 60.0) -> bytes:
        """The body of an answer that has to be good; BackendError if it is not."""
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def done(status: int, body: bytes, at_s: float) -> None:
            if not answer.done():
                answer.set_result((status, body))

        self.send(request, done)
        what = request[:60].split(b" HTTP", 1)[0].decode(errors="replace")
        try:
            status, body = await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise BackendError(f"{what}: no answer within {timeout_s:g} s") from None
        if status != 200:
            raise BackendError(
                f"{what}: {status or 'connection'} {body[:300].decode(errors='replace')}".strip()
            )
        return body

    def free(self, lane: _Lane) -> None:
        self._free.append(lane)

    def lost(self, lane: _Lane) -> None:
        self._lanes.discard(lane)
        if lane in self._free:
            self._free.remove(lane)

    async def _connect(self) -> None:
        try:
            _, lane = await asyncio.get_running_loop().create_connection(
                lambda: _Lane(self), self._host, self._port
            )
        except OSError as error:
            raise BackendError(f"{self._host}:{self._port} does not answer: {error.strerror}") from error
        self._lanes.add(lane)
        self._free.append(lane)

    async def _send_new(self, request: bytes, done: Done) -> None:
        try:
            await self._connect()
        except BackendError:
            done(0, b"", clock())
            return
        self.send(request, done)
