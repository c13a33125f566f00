"""An instance that computes nothing: answers as a test says and remembers what it got; also as a process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(slots=True)
class Stub:
    """Attributes:
    mode: "ok"; "not_ready" refuses everything; "cut" breaks connections; "hang" answers nobody.
    feedback: its word; None has no such endpoint.
    status: what `/healthz` says.
    delay_s: before each answer.
    """

    name: str = "stub"
    mode: str = "ok"
    status: str = "ready"
    delay_s: float = 0.0
    reason: str = ""
    feedback: dict[str, Any] | None = field(
        default_factory=lambda: {
            "ready": True,
            "draining": False,
            "build": "b1",
            "page_tokens": 32,
            "load": 0,
        }
    )
    sent: list[Sent] = field(default_factory=list)
    given_up: int = 0
    port: int = 0
    prefixes: set[str] = field(default_factory=set)
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def to(self, path: str) -> list[Sent]:
        return [one for one in self.sent if one.target.partition("?")[0] == path]

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/relay/feedback":
            return await self._word()
        if request.path == "/healthz":
            return _json({"status": self.status})
        if request.path == "/readyz":
            return _json({"status": self.status}, 200 if self.status == "ready" else 503)
        sent = Sent(
            request.method,
            request.raw_path,
            {name.lower(): value for name, value in request.headers.items()},
            await request.read(),
        )
        self.sent.append(sent)
        return await self._answer(request, sent)

    async def _word(self) -> web.StreamResponse:
        if self.mode == "hang":
            await asyncio.sleep(60)
        return web.Response(status=404) if self.feedback is None else _json(self.feedback)

    async def _answer(self, request: web.Request, sent: Sent) -> web.StreamResponse:
        if self.mode == "cut":
            assert request.transport is not None
            request.transport.abort()
        if self.mode == "not_ready":
            return _error(503, "not_ready")
        try:
            await asyncio.sleep(60 if self.mode == "hang" else self.delay_s)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if request.method == "DELETE":
            return _json({"user": "u", "events": 3, "entries": 1})
        try:
            user = sent.json().get("user", "") if sent.body else ""
        except msgspec.DecodeError:
            return _error(400, "json")
        if request.path == "/v1/prefix":
            self.prefixes.add(user)
            admission = "rejected" if self.reason else "admitted"
            return _json({"user": user, "admission": admission, "reason": self.reason, "by": self.name})
        path = "hit" if user in self.prefixes else "full"
        return _json({"user": user, "path": path, "by": self.name})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(status: int, code: str) -> web.Response:
    detail = {"code": code, "message": "no", "field": "", "request_id": "r"}
    return _json({"error": detail}, status)


@asynccontextmanager
async def stubs(*names: str) -> AsyncIterator[list[Stub]]:
    """Running ones, stopped at the end."""
    found = [Stub(name) for name in names]
    for stub in found:
        await stub.start()
    try:
        yield found
    finally:
        for stub in found:
            await stub.stop()


async def _main(name: str, port: int) -> None:
    stub = Stub(name, delay_s=0.005, port=port)
    await stub.start()
    print(stub.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
