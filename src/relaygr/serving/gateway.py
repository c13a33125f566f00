"""The router alone, in front of instances: the same HTTP API, every user at one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError, NotReadyError, RelayError
from relaygr.relay.route import Lap
from relaygr.serving import members, process
from relaygr.serving.admit import Admissions
from relaygr.serving.auth import Gatekeeper, check_admin
from relaygr.serving.errors import HttpError, problem
from relaygr.serving.exchange import Gone, Reply, check_path, internal_error, request_id
from relaygr.serving.fleet import Fleet
from relaygr.serving.forward import Delivered, Dropped, Forwarder, Here
from relaygr.serving.intake import Intake
from relaygr.serving.laps import Kind, kind_of
from relaygr.serving.logs import answered, bound, configure
from relaygr.serving.oip_errors import oip_error
from relaygr.serving.returns import dropped, merged, passed_on, stamped
from relaygr.serving.router_metrics import RouterMetrics
from relaygr.serving.stream.program import Consuming
from relaygr.serving.stream.sinks import Routed, Sink
from relaygr.serving.wire import Health

_MEMBERS = "/v1/members"
# Of an instance alone: the next request may be answered by another.
_NOT_HERE = frozenset(("/", "/v1/status"))
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


def run(config: Config, announce: Callable[[str], None]) -> bool:
    """Route until a signal; `announce` is told the URL as soon as it answers.

    Returns whether everything that was accepted was finished.

    Raises:
        ConfigError: a setting is wrong, or the address cannot be had.
    """
    configure(config.serving.log_level, config.serving.log_personal)
    gateway = Gateway(config)
    program: process.Program = gateway
    if config.stream.url:
        program = Consuming(gateway, config, gateway.sink(), gateway.registry)
    return process.run(gateway, program, config.serving, announce)


class Gateway:
    """An ASGI application, and what is started and drained behind it; belongs to one event loop.

    Attributes:
        fleet: the members.
        registry: metrics, of its own.
    """

    def __init__(self, config: Config, fleet: Fleet | None = None) -> None:
        """ConfigError without members, with a `self_id`, or with wrong keys.

        With a `fleet`, that one's members are sent to.
        """
        if not config.router.members and fleet is None:
            raise ConfigError("router.members", "is empty; a gateway needs instances to send requests to")
        if config.router.self_id:
            raise ConfigError("router.self_id", "must be empty: a gateway is none of the members")
        self._config, self._settings = config, config.serving
        self._gatekeeper = Gatekeeper(config.serving.keys)
        self._intake = Intake(config, self._gatekeeper)
        self._admissions = Admissions(config.serving.requests_max, config.serving.tenant_requests_max)
        self.fleet, self._health = fleet or Fleet(config), Health("starting")
        self._forwarder = Forwarder(self.fleet)
        self._refusing = False
        # Else every counter comes with the time it was made, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(RouterMetrics(self.fleet.router, self._forwarder))
        self._answers = Counter(
            "relaygr_http_requests_total", "HTTP answers", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "relaygr_http_request_seconds", "From the request to the answer", ("route",),
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip

    def sink(self) -> Sink:
        """Takes events for the instances."""
        limit_s = self._config.scheduler.deadline_max_ms / 1000
        return Routed(self._forwarder, self._settings.keys, None, limit_s)

    async def start(self) -> None:
        """Ask all members once; ready from now on, as soon as one of them is."""
        await self.fleet.start()
        self._health = Health("ready")

    async def drain(self, timeout_s: float) -> bool:
        """Say that it is not ready, refuse new requests, finish those there are."""
        self._health = Health("draining")
        await asyncio.sleep(self._settings.drain_delay_s)
        self._refusing = True
        done = await self._admissions.idle(timeout_s)
        await self.fleet.close()
        return done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started_s, headers = time.perf_counter(), Headers(scope=scope)
        kind, identity, code = kind_of(scope["method"], scope["path"]), request_id(headers), ""
        with bound(request_id=identity):
            try:
                reply = await self._reply(scope, headers, kind, identity, receive)
            except RelayError as error:
                reply, code = self._problem(scope, error, identity), problem(error).code
            except Exception as error:
                await self._send(self._problem(scope, error, identity), identity, started_s, send)
                raise
            await self._send(reply, identity, started_s, send)
            # The event loop writes to sockets at the end of its turn: the answer goes out before this.
            asyncio.get_running_loop().call_soon(self._tell, scope, kind, reply.status, started_s, code)

    async def _reply(
        self, scope: Scope, headers: Headers, kind: Kind, identity: str, receive: Receive
    ) -> Reply:
        check_path(scope)
        own = await self.own(scope, headers)
        if own is not None:
            return own
        if self._refusing or self._health.status == "starting":
            raise NotReadyError(f"the gateway is {'stopping' if self._refusing else 'starting'}")
        with self._admissions.enter(self._intake.tenant(headers)):
            body = await self._intake.body(headers, receive)
            gone = asyncio.ensure_future(Gone(receive)())
            try:
                return await self._forward(scope, headers, kind, identity, body, gone)
            finally:
                gone.cancel()

    async def _forward(
        self,
        scope: Scope,
        headers: Headers,
        kind: Kind,
        identity: str,
        body: bytes,
        gone: asyncio.Future[None],
    ) -> Reply:
        errand = self._intake.errand(scope, headers, kind, identity, body)
        if kind.everyone:
            return merged(await self._forwarder.everywhere(errand, gone))
        found: Delivered | Dropped | Here
        if errand.lap is Lap.PREFIX and errand.key is not None:
            found = await self._forwarder.prefix(errand, gone)
        else:
            found = await self._forwarder.send(errand, gone)
        assert not isinstance(found, Here)
        return dropped(found, body, identity) if isinstance(found, Dropped) else passed_on(found, kind)

    async def own(self, scope: Scope, headers: Headers) -> Reply | None:
        """What the gateway answers itself; None for what goes on."""
        method, path = scope["method"], scope["path"]
        if path == _MEMBERS or path.startswith(_MEMBERS + "/"):
            check_admin(self._gatekeeper.caller(headers))
            if method == "POST":
                return Reply.json(members.change(self.fleet, path))
            if method == "GET" and path == _MEMBERS:
                return Reply.json(members.show(self.fleet))
            raise HttpError(HTTPStatus.NOT_FOUND, "not_found", f"{method} {path[:200]}: not found")
        if method not in ("GET", "HEAD"):
            return None
        if path == "/healthz":
            return Reply.json(self._health)
        if path == "/readyz":
            if self._health.status != "ready":
                raise NotReadyError(f"the gateway is {self._health.status}")
            if not self.fleet.ready:
                raise NotReadyError("no instance is ready")
            return Reply.json(self._health)
        if path == "/metrics":
            encoder, content_type = choose_encoder(headers.get("accept", ""))
            return Reply(encoder(self.registry), content_type=content_type.encode())
        if path in _NOT_HERE:
            raise HttpError(
                HTTPStatus.NOT_FOUND, "not_found", f"{method} {path}: ask an instance; see {_MEMBERS}"
            )
        return None

    def _problem(self, scope: Scope, error: Exception, identity: str) -> Reply:
        found = problem(error) if isinstance(error, RelayError) else internal_error(error)
        return (oip_error if scope["path"].startswith("/v2") else Reply.problem)(found, identity)

    async def _send(self, reply: Reply, identity: str, started_s: float, send: Send) -> None:
        seconds, closing = time.perf_counter() - started_s, self._health.status == "draining"
        await stamped(reply, identity, seconds, closing=closing).send(send)

    def _tell(self, scope: Scope, kind: Kind, status: int, started_s: float, code: str) -> None:
        route = scope["path"] if scope["path"] in _SHOWN else kind.route
        seconds = time.perf_counter() - started_s
        self._answers.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        answered(scope["method"], route, status, seconds, error=code)


_SHOWN = frozenset(("/healthz", "/readyz", "/metrics", _MEMBERS))
