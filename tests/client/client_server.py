"""A server that does to each connection what a test says, and one way to call both clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from relaygr.client import AsyncClient, Client, Door, RetryPolicy

RANKING = {
    "user": "u",
    "tasks": ["engage"],
    "scores": [[0.5], [-1.25]],
    "path": "hit",
    "tokens_cached": 3,
    "tokens_computed": 0,
    "served_tokens": 3,
    "unknown_ids": 0,
    "model": "ab",
    "request_id": "r",
    "queue_ms": 0.1,
    "compute_ms": 0.2,
    "of_a_newer_server": True,
}
APPENDED = {"user": "u", "sequence": 2, "accepted": 2, "duplicates": 0, "late": 0, "replayed": False}
PATIENT = RetryPolicy(base_ms=1.0, cap_ms=2.0)


@dataclass
class Ask:
    """One way to make calls: `Client`, or `AsyncClient` in a loop of its own."""

    asynchronous: bool

    def __call__(
        self, door: Door, method: str, *arguments: Any, transport: Any = None, **options: Any
    ) -> Any:
        return self.each(door, [(method, arguments, options)], transport)[0]

    def each(
        self, door: Door, asked: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]], transport: Any = None
    ) -> list[Any]:
        """Several calls of one client, one after another."""
        if not self.asynchronous:
            with Client(door, transport) as client:
                return [getattr(client, name)(*args, **options) for name, args, options in asked]

        async def run() -> list[Any]:
            async with AsyncClient(door, transport) as client:
                return [await getattr(client, name)(*args, **options) for name, args, options in asked]

        return asyncio.run(run())


@dataclass
class Script:
    """Answers request after request with what stands next; the last one again and again."""

    replies: list[httpx.Response | Exception]
    seen: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        reply = self.replies[min(len(self.seen), len(self.replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self)

    def bodies(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(request.content) for request in self.seen]


def refusal(status: int, code: str, **more: Any) -> httpx.Response:
    error = {"code": code, "message": "said so", "field": "", "request_id": "r", **more}
    return httpx.Response(status, json={"error": error})


Handler = Callable[[socket.socket], None]


class RawServer:
    """Accepts connections and hands the n-th to the n-th handler, the last one again and again."""

    def __init__(self, *handlers: Handler) -> None:
        self._handlers = handlers
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        for connection in self._open:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            self.connections += 1
            handler = self._handlers[min(self.connections, len(self._handlers)) - 1]
            threading.Thread(target=_guarded, args=(handler, connection), daemon=True).start()


def _guarded(handler: Handler, connection: socket.socket) -> None:
    try:
        handler(connection)
    except OSError:
        return  # the client left, as some tests want it to


def read_request(connection: socket.socket) -> bytes:
    """Head and body of one request; fails when the client leaves before its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += _some(connection)
    return body


def _some(connection: socket.socket) -> bytes:
    piece = connection.recv(65536)
    if not piece:
        raise OSError("the client left")
    return piece


def answering(value: Any) -> Handler:
    """Answers every request of the connection."""
    body = msgspec.json.encode(value)

    def handle(connection: socket.socket) -> None:
        while True:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    return handle
