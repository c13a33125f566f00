"""A server of the relay's door with service times that a test sets: one worker, first come first served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from relaygr.bench.relay_wire import Door


class RelayStub:
    """Serves prefixes and rankings in the times given; a user whose prefix is done is ranked as a hit.

    Attributes:
        full_ms, pre_ms, hit_ms: of its one worker.
        relays: whether it computes prefixes.
        truncate: rankings read so many tokens instead of all; None shortens nothing.
        path: what served them, instead of what did.
        fail: status of rankings, if not 200; 0 breaks the connection.
        counts, bodies: requests so far, by what they are.
    """

    def __init__(self, *, full_ms: float = 4.0, pre_ms: float = 3.0, hit_ms: float = 1.0) -> None:
        self.full_ms, self.pre_ms, self.hit_ms = full_ms, pre_ms, hit_ms
        self.relays = True
        self.truncate: int | None = None
        self.path = ""
        self.fail = 200
        self.counts: Counter[str] = Counter()
        self.bodies: dict[str, list[dict[str, Any]]] = {"events": [], "prefix": [], "rank": []}
        self.seen: list[tuple[float, str, str]] = []
        self.tokens: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: dict[str, float] = {}
        self._free_s = 0.0

    @asynccontextmanager
    async def door(self) -> AsyncIterator[Door]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            async with Door("127.0.0.1", port, 8) as door:
                yield door
        finally:
            server.close()
            await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-l")),
                    0,
                )
                method, path, _ = head.split(" ", 2)
                body = msgspec.json.decode(await reader.readexactly(length)) if length else {}
                status, answer = await self._answer(method, path, body)
                if status == 0:
                    return
                data = msgspec.json.encode(answer)
                writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(data)}\r\n\r\n".encode())
                await asyncio.sleep(0)  # the body is a packet of its own
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        what = path.split("/")[2] if method == "POST" else method
        self.counts[what] += 1
        if method == "DELETE":
            self.tokens.pop(path.split("/")[3], None)
            return 200, {}
        if method == "GET":
            return 200, {}
        self.bodies[what].append(body)
        user = body["user"]
        self.seen.append((asyncio.get_running_loop().time(), what, user))
        if what == "events":
            self.tokens[user] += len(body["items"])
            return 200, {"accepted": len(body["items"])}
        if what == "prefix":
            if not self.relays:
                return 200, {"admission": "rejected", "reason": "disabled"}
            self._ready[user] = await self._work(self.pre_ms, wait=False)
            return 200, {"admission": "admitted", "reason": ""}
        return await self._rank(user, body)

    async def _rank(self, user: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        queued_s = asyncio.get_running_loop().time()
        hit = user in self._ready
        ms = self.hit_ms if hit else self.full_ms
        await self._work(ms, wait=True)
        waited_ms = 1000 * (asyncio.get_running_loop().time() - queued_s) - ms
        if self.fail != 200:
            return self.fail, {"error": {"code": "deadline"}}
        served, path = self.tokens[user], "hit" if hit else "full"
        if self.truncate is not None:
            served, path = self.truncate, "truncated" if self.truncate else "degraded"
        return 200, {
            "scores": [[0.0]] * len(body["candidates"]),
            "path": self.path or path,
            "served_tokens": served,
            "queue_ms": max(waited_ms, 0.0),
            "compute_ms": ms,
        }

    async def _work(self, ms: float, *, wait: bool) -> float:
        """The end of work that the one worker begins when it is free."""
        loop = asyncio.get_running_loop()
        self._free_s = max(self._free_s, loop.time()) + ms / 1000
        end_s = self._free_s
        if wait:
            await asyncio.sleep(end_s - loop.time())
        return end_s
