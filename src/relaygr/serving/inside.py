"""An ASGI application asked from inside its process: a value goes in, and one comes out."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Scope

from relaygr.serving.links import Answer, Pairs

log = logging.getLogger("relaygr.serving")


class Inside:
    """Asks one application; belongs to one event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, method: str, target: str, headers: Pairs, body: bytes) -> Answer:
        """The application's whole answer. When this is cancelled, it hears that the client has disconnected.

        Raises:
            Exception: what the application raised before it had answered.
        """
        call = _Call(body)
        task = asyncio.create_task(call.run(self._app, scope_of(method, target, headers)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            call.gone.set()
            task.add_done_callback(_heard)
            raise
        return Answer(call.status, call.headers, b"".join(call.parts))


class _Call:
    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.gone = asyncio.Event()
        self.status, self.headers = 0, Pairs()
        self.parts: list[bytes] = []

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            if not self.status:
                raise
            # As a server does: the answer stands, the log has what went wrong.
            log.exception("%s %s failed", scope["method"], scope["path"])

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))


def scope_of(method: str, target: str, headers: Pairs) -> Scope:
    """A request's scope as a server makes it. `target` is the path and the query, as sent."""
    raw_path, _, query = target.encode("latin-1").partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": unquote_to_bytes(raw_path).decode("utf-8", "replace"),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        "state": {},
    }


def _heard(task: asyncio.Task[None]) -> None:
    """An error that nobody waits for any more is not one that nobody has seen."""
    if not task.cancelled():
        task.exception()
