"""A server for cascades: it does to each lap what a test says, and notes what it sees."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

T = TypeVar("T")
Reply = Callable[["Seen"], Awaitable[bytes | None]]
"""The bytes of an answer; None resets the connection."""

FOUND = [3, 9, 4]
SIGNAL = {
    "user": "u",
    "admission": "admitted",
    "reason": "",
    "tokens": 5,
    "cached": 0,
    "model": "a",
    "request_id": "r",
}


@dataclass
class Seen:
    """One request; `answered` once its answer is on its way, `left` if the client went away before."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    answered: bool = False
    left: bool = False


@dataclass
class StubServer:
    """Answers `/v1/prefix` with `signal` and `/v1/rank` with `rank`, in a thread of its own."""

    signal: Reply = field(default_factory=lambda: answering(SIGNAL))
    rank: Reply = field(default_factory=lambda: ranking)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def signals(self) -> list[Seen]:
        return [one for one in self.seen if one.path == "/v1/prefix"]

    @property
    def ranks(self) -> list[Seen]:
        return [one for one in self.seen if one.path == "/v1/rank"]

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=512)
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head[1:-2]}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(head[0].split()[1], headers, msgspec.json.decode(body))
        self.seen.append(seen)
        reply = asyncio.ensure_future((self.signal if seen.path == "/v1/prefix" else self.rank)(seen))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                seen.left = True
                return False
        finally:
            reply.cancel()
            gone.cancel()
            # The reader has one user at a time: wait until the other has let go.
            await asyncio.gather(gone, return_exceptions=True)
        answer = reply.result()
        if answer is None:
            writer.transport.abort()
            return False
        seen.answered = True
        writer.write(answer)
        await writer.drain()
        return True


def http(status: int, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answering(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    async def reply(seen: Seen) -> bytes:
        return http(status, msgspec.json.encode(value), headers)

    return reply


def raw(data: bytes) -> Reply:
    async def reply(seen: Seen) -> bytes:
        return data

    return reply


def refusing(status: int, code: str, **more: Any) -> Reply:
    error = {"code": code, "message": "said so", "field": "", "request_id": "r", **more}
    return answering({"error": error}, status)


async def hanging(seen: Seen) -> bytes:
    await asyncio.sleep(3600)
    raise AssertionError("nobody waits so long")


async def resetting(seen: Seen) -> None:
    return None


async def ranking(seen: Seen) -> bytes:
    """The larger the id, the better; on the path `hit`."""
    ids = seen.body["candidates"]
    order = sorted(range(len(ids)), key=lambda place: -ids[place])[: seen.body.get("top_k")]
    return http(200, msgspec.json.encode(ranked(len(ids), order, seen.body["user"])))


def ranked(count: int, order: Any, user: str = "u") -> dict[str, Any]:
    return {
        "user": user,
        "tasks": ["engage"],
        "scores": [[0.5]] * count,
        "path": "hit",
        "tokens_cached": 3,
        "tokens_computed": 0,
        "served_tokens": 3,
        "unknown_ids": 0,
        "model": "ab",
        "request_id": "r",
        "queue_ms": 0.1,
        "compute_ms": 0.2,
        "order": order,
    }


def run(main: Callable[[], Coroutine[Any, Any, T]], limit_s: float = 60.0) -> T:
    """Run `main`; nothing of it may be left behind, and the loop may have nothing to complain about."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        try:
            async with asyncio.timeout(limit_s):
                return await main()
        finally:
            gc.collect()
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left

    try:
        return asyncio.run(watched())
    finally:
        gc.collect()
        assert not complaints, complaints
