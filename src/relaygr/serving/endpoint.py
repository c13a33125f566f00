"""An operation of the service as an ASGI application: who calls, within limits, one answer or one error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relaygr.core.errors import RelayError
from relaygr.serving.auth import Caller, Gatekeeper, check_admin
from relaygr.serving.errors import Problem, problem
from relaygr.serving.exchange import (
    ERROR,
    MESSAGE,
    REQUEST_ID,
    ROUTE,
    TIMINGS,
    Gone,
    Reply,
    check_path,
    check_type,
    decode,
    read_body,
    request_id,
)
from relaygr.serving.logs import answered, bound
from relaygr.serving.service import Service
from relaygr.serving.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way.

    Attributes:
        body: decoded where the operation has a body type, else its bytes.
        names: parameters of the path.
        timings: milliseconds by name, sent as `server-timing`.
    """

    service: Service
    caller: Caller
    headers: Headers
    names: dict[str, str]
    request_id: str
    body: Any
    gone: Gone
    timings: dict[str, float]


Handler = Callable[[Call], Awaitable[Reply | msgspec.Struct]]
Shape = Callable[[Problem, str], Reply]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, and what is written about it.

    Attributes:
        body: type of the JSON body; None for no body, bytes for one that the handler reads.
        answer: type of the JSON answer; None for other content, of `content_type`.
        errors: statuses it can answer beside those that every operation can.
        open: needs no key.
        optional: an empty body is allowed.
        types: content types of the body.
        shape: how errors look.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: Any = None
    answer: Any = None
    errors: tuple[int, ...] = ()
    open: bool = False
    admin: bool = False
    optional: bool = False
    content_type: str = "application/json"
    types: tuple[str, ...] = ("application/json",)
    shape: Shape = field(default=Reply.problem)


class Endpoint:
    """Runs one operation."""

    def __init__(self, operation: Operation, service: Service, gatekeeper: Gatekeeper) -> None:
        self._operation, self._service, self._gatekeeper = operation, service, gatekeeper
        typed = operation.body not in (None, bytes)
        self._decoder = msgspec.json.Decoder(operation.body) if typed else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = self._operation.path
        try:
            reply = await self._reply(scope, receive)
        except RelayError as error:
            found = problem(error)
            scope[ERROR], scope[MESSAGE] = found.code, found.message
            reply = self._operation.shape(found, scope[REQUEST_ID])
        await reply.send(send)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        operation, headers = self._operation, Headers(scope=scope)
        check_path(scope)
        if operation.open:
            return await self._run(scope, headers, receive, _NOBODY)
        caller = self._gatekeeper.caller(headers)
        if operation.admin:
            check_admin(caller)
        with self._service.admissions.enter(caller.tenant):
            return await self._run(scope, headers, receive, caller)

    async def _run(self, scope: Scope, headers: Headers, receive: Receive, caller: Caller) -> Reply:
        call = Call(
            self._service,
            caller,
            headers,
            scope["path_params"],
            scope[REQUEST_ID],
            await self._body(headers, receive),
            Gone(receive),
            scope[TIMINGS],
        )
        answer = await self._operation.handler(call)
        return answer if isinstance(answer, Reply) else Reply.json(answer)

    async def _body(self, headers: Headers, receive: Receive) -> Any:
        operation, settings = self._operation, self._service.config.serving
        if operation.body is None:
            return None
        check_type(headers, operation.types)
        data = await read_body(headers, receive, settings.body_limit_bytes, settings.body_timeout_s)
        if self._decoder is None:
            return data
        return operation.body() if operation.optional and not data else decode(self._decoder, data)


_NOBODY = Caller("", False)


class Envelope:
    """Around every request: its id, its trace, its time, its line in the log."""

    def __init__(self, app: ASGIApp, service: Service, tracing: Tracing) -> None:
        self._app, self._service, self._tracing = app, service, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, seen = Headers(scope=scope), _Seen(self._service, send)
        scope[REQUEST_ID] = seen.request_id = request_id(headers)
        scope[TIMINGS], scope[ROUTE], scope[ERROR] = seen.timings, "unknown", ""
        parent = headers.get("traceparent")
        with (
            self._tracing.request(scope["method"], parent, headers.get("tracestate")) as lap,
            bound(request_id=seen.request_id, trace_id=lap.trace_id),
        ):
            try:
                await self._app(scope, receive, seen.send)
            finally:
                lap.answered(scope[ROUTE], seen.status)
                # The event loop writes to sockets at the end of its turn: the answer goes out before this.
                asyncio.get_running_loop().call_soon(self._tell, scope, seen.status, seen.seconds())

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        self._service.metrics.answered(scope[ROUTE], status, seconds)
        # The message may quote a user: the log shows it only where it may name users.
        said = {"message": scope[MESSAGE]} if status >= 500 and MESSAGE in scope else {}
        answered(scope["method"], scope[ROUTE], status, seconds, error=scope[ERROR], **said)


class _Seen:
    """An answer on its way out: gets the headers that every answer has. Status 0 until there is one."""

    def __init__(self, service: Service, send: Send) -> None:
        self.request_id, self.status = "", 0
        self.timings: dict[str, float] = {}
        self._service, self._send, self._started_s = service, send, time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._started_s

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            self.timings["total"] = self.seconds() * 1000
            parts = ", ".join(f"{what};dur={ms:.3f}" for what, ms in self.timings.items())
            headers = message["headers"]
            headers += [(b"x-request-id", self.request_id.encode()), (b"server-timing", parts.encode())]
            if self._service.health.status == "draining":
                # The client is to connect to another server.
                headers.append((b"connection", b"close"))
        await self._send(message)
