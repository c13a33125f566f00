"""A server that answers a load as a test says, on a real port in the load's own loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

Handler = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


class Stub:
    """Counts requests and keeps their bodies; `rank` may be replaced, `cut` breaks every connection."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.bodies: dict[str, list[dict[str, Any]]] = {"events": [], "rank": [], "prefix": []}
        self.rank: Handler = self.hit
        self.removed: list[str] = []
        self.refuse_removal = self.cut = False

    async def hit(self, body: dict[str, Any]) -> web.Response:
        return json(
            {
                "scores": [[0.0]] * len(body["candidates"]),
                "path": "hit",
                "tokens_cached": 3,
                "served_tokens": 4,
                "model": "ab",
            }
        )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        stage = request.path.removeprefix("/v1/")
        self.counts[stage] += 1
        body = msgspec.json.decode(await request.read())
        self.bodies[stage].append(body)
        if self.cut and request.transport is not None:
            request.transport.abort()
        if stage == "rank":
            return await self.rank(body)
        return json({"admission": "admitted"} if stage == "prefix" else {"accepted": len(body["items"])})

    async def _remove(self, request: web.Request) -> web.Response:
        self.removed.append(request.match_info["user"])
        return web.Response(status=503) if self.refuse_removal else json({})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/{stage}", self._serve)
        app.router.add_delete("/v1/users/{user}", self._remove)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def answering(status: int, body: bytes = b"{}") -> Handler:
    async def handle(_: dict[str, Any]) -> web.Response:
        return web.Response(status=status, body=body)

    return handle


def holding(until: Callable[[], bool], then: Handler) -> Handler:
    """Answers nobody before `until` is true."""

    async def handle(body: dict[str, Any]) -> web.StreamResponse:
        while not until():
            await asyncio.sleep(0.005)
        return await then(body)

    return handle
