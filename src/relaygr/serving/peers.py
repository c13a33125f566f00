"""Instances that route among themselves: what another one has goes there, one hop, by the gateway's rules."""

from __future__ import annotations

import asyncio
import contextlib
import time

from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relaygr.config.settings import Config
from relaygr.core.errors import DeadlineError, NotReadyError, RelayError
from relaygr.relay.route import Lap, Route
from relaygr.serving.auth import Gatekeeper
from relaygr.serving.errors import problem
from relaygr.serving.exchange import Gone, Reply, request_id
from relaygr.serving.fleet import Fleet
from relaygr.serving.forward import Delivered, Dropped, Errand, Forwarder, Here
from relaygr.serving.intake import Intake
from relaygr.serving.laps import EPOCH, HOP, LAPS, MOVED, Kind, admitted, kind_of
from relaygr.serving.links import Answer
from relaygr.serving.logs import answered, bound
from relaygr.serving.oip_errors import oip_error
from relaygr.serving.process import Program
from relaygr.serving.returns import dropped, merged, passed_on, relay_headers, stamped
from relaygr.serving.router_metrics import RouterMetrics


def with_peers(
    app: ASGIApp, program: Program, config: Config, registry: CollectorRegistry
) -> tuple[ASGIApp, Program]:
    """The application and its program as they are to be run: with peers around them if there are any."""
    if not (config.router.members and config.router.self_id):
        return app, program
    peers = Peers(app, program, config)
    registry.register(RouterMetrics(peers.fleet.router, peers.forwarder))
    return peers, peers


class Peers:
    """An ASGI application around an instance's own; belongs to one event loop.

    Attributes:
        fleet: the members, this one among them.
        forwarder: its way to the others.
    """

    def __init__(self, app: ASGIApp, program: Program, config: Config) -> None:
        """ConfigError for wrong keys."""
        self._app, self._program, self._self = app, program, config.router.self_id
        self._intake = Intake(config, Gatekeeper(config.serving.keys))
        self.fleet = Fleet(config)
        self.forwarder = Forwarder(self.fleet, self._self)
        self._open = False

    async def start(self) -> None:
        await self._program.start()
        await self.fleet.start()
        self._open = True

    async def drain(self, timeout_s: float) -> bool:
        """Requests for others go on to them until this one has finished its own."""
        done = await self._program.drain(timeout_s)
        self._open = False
        await self.fleet.close()
        return done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = kind_of(scope["method"], scope["path"]) if scope["type"] == "http" else None
        # A second hop would only mean that two routers disagree.
        if kind is None or kind.lap is None or not self._open or HOP in Headers(scope=scope):
            await self._app(scope, receive, send)
            return
        await _Visit(self, self._app, self._intake, kind, scope, receive, send).run()

    async def elsewhere(
        self, errand: Errand, gone: asyncio.Future[None]
    ) -> Delivered | Dropped | Here | None:
        """Send on; Here or None for what this member does itself, routed or because nobody else can."""
        if errand.key is None:
            return None
        try:
            if errand.lap is Lap.PREFIX:
                return await self.forwarder.prefix(errand, gone)
            return await self.forwarder.send(errand, gone)
        except NotReadyError:
            return None


class _Visit:
    """One request of a user, here or elsewhere."""

    def __init__(
        self,
        peers: Peers,
        app: ASGIApp,
        intake: Intake,
        kind: Kind,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._peers, self._app, self._intake, self._kind = peers, app, intake, kind
        self._scope, self._receive, self._send = scope, receive, send
        self._headers, self._started_s = Headers(scope=scope), time.perf_counter()
        self._id = request_id(self._headers)

    async def run(self) -> None:
        with bound(request_id=self._id):
            try:
                reply = await self._reply()
            except RelayError as error:
                found = problem(error)
                shape = oip_error if self._scope["path"].startswith("/v2") else Reply.problem
                await self._answer(shape(found, self._id), found.code)
                return
            if reply is not None:
                await self._answer(reply)

    async def _reply(self) -> Reply | None:
        """None for what was answered here."""
        body = await self._intake.body(self._headers, self._receive)
        errand = self._intake.errand(self._scope, self._headers, self._kind, self._id, body)
        heard = _heard(body, self._receive)
        gone = asyncio.ensure_future(Gone(self._receive)())
        try:
            if self._kind.everyone:
                return await self._everywhere(errand, heard, gone)
            found = await self._peers.elsewhere(errand, gone)
        finally:
            gone.cancel()
        if isinstance(found, Delivered):
            return passed_on(found, self._kind)
        if isinstance(found, Dropped):
            return dropped(found, body, self._id)
        if found is None:
            await self._app(self._scope, heard, self._send)
        else:
            await self._here(found, errand.key, heard)
        return None

    async def _here(self, found: Here, key: str | None, heard: Receive) -> None:
        """By this member's own application."""
        route = found.route
        added = relay_headers(route.member, route.epoch) if self._kind.lap in LAPS else []
        status, awaited = 0, False

        async def send(message: Message) -> None:
            nonlocal status, awaited
            if message["type"] == "http.response.start":
                status = int(message["status"])
                message["headers"] = [*message["headers"], *added]
                with contextlib.suppress(RuntimeError):  # its time may be over in the same turn
                    limit.reschedule(None)
            elif self._kind.lap is Lap.PREFIX:
                awaited = admitted(status, message.get("body", b""))
            await self._send(message)

        fleet, limit = self._peers.fleet, asyncio.timeout_at(found.until_s)
        try:
            async with limit:
                await self._app(self._routed(route), heard, send)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineError("no answer in time, neither elsewhere nor here") from error
        finally:
            if awaited and key is not None:
                fleet.router.admitted(key, route.member, fleet.now_s())
            else:
                fleet.router.done(route.member)

    async def _everywhere(self, errand: Errand, heard: Receive, gone: asyncio.Future[None]) -> Reply:
        """Here first, so that this answer counts what there was; then at all others."""
        parts: list[Message] = []

        async def keep(message: Message) -> None:
            parts.append(message)

        await self._app(self._scope, heard, keep)
        start = next(part for part in parts if part["type"] == "http.response.start")
        body = b"".join(part.get("body", b"") for part in parts if part["type"] == "http.response.body")
        own = Answer(start["status"], list(start["headers"]), body)
        if own.status >= 300:
            return merged([own])
        try:
            return merged([own, *await self._peers.forwarder.everywhere(errand, gone)])
        except NotReadyError:
            return merged([own])

    def _routed(self, route: Route) -> Scope:
        """The request as it would have come from a gateway."""
        ours = {EPOCH.encode(): str(route.epoch).encode(), b"x-request-id": self._id.encode()}
        if route.moved:
            ours[MOVED.encode()] = b"1"
        kept = [pair for pair in self._scope["headers"] if pair[0] not in ours]
        return {**self._scope, "headers": [*kept, *ours.items()]}

    async def _answer(self, reply: Reply, code: str = "") -> None:
        seconds = time.perf_counter() - self._started_s
        await stamped(reply, self._id, seconds).send(self._send)
        answered(self._scope["method"], self._kind.route, reply.status, seconds, error=code)


def _heard(body: bytes, receive: Receive) -> Receive:
    """Says the body once more, and then whatever comes."""
    said = False

    async def again() -> Message:
        nonlocal said
        if said:
            return await receive()
        said = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
