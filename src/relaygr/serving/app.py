"""The routes: one table of operations, from which the application and its OpenAPI document are made."""

from __future__ import annotations

import asyncio
import functools
from importlib import resources

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relaygr.core.errors import NotReadyError
from relaygr.serving import wire
from relaygr.serving.auth import Gatekeeper
from relaygr.serving.endpoint import Call, Endpoint, Envelope, Operation
from relaygr.serving.errors import HttpError, Problem
from relaygr.serving.exchange import ERROR, JSON, REQUEST_ID, Reply, internal_error
from relaygr.serving.generation.routes import GENERATION
from relaygr.serving.oip import OIP
from relaygr.serving.oip_errors import oip_error
from relaygr.serving.openapi import document
from relaygr.serving.service import Service
from relaygr.serving.slate.routes import SLATES
from relaygr.serving.snapshot import Status
from relaygr.serving.told import heed
from relaygr.serving.tracing import Tracing

HTML = "text/html; charset=utf-8"


class _Name(Convertor[str]):
    """A user's name, line breaks included: a pattern that stops at one would name another user."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _Name())


async def rank(call: Call) -> wire.RankAnswer:
    _heed(call, call.body.user)
    answer = await call.service.rank(call.caller.tenant, call.body, call.request_id, call.gone)
    call.timings["queue"], call.timings["compute"] = answer.queue_ms, answer.compute_ms
    return answer


async def prefix(call: Call) -> wire.PrefixReply:
    _heed(call, call.body.user)
    return await call.service.prefix(call.caller.tenant, call.body, call.request_id)


def _heed(call: Call, user: str) -> None:
    heed(call.service, call.headers, call.caller.tenant, (user,))


async def events(call: Call) -> wire.EventsAnswer:
    body, key = call.body, call.headers.get("idempotency-key")
    if key is not None:
        if body.key not in (None, key):
            raise HttpError(422, "request", "key: differs from the header idempotency-key", field="key")
        body = replace(body, key=key)
    return await call.service.append(call.caller.tenant, body)


async def set_profile(call: Call) -> wire.ProfileAnswer:
    return await call.service.set_profile(call.caller.tenant, call.names["user"], call.body)


async def state(call: Call) -> wire.StateAnswer:
    _heed(call, call.names["user"])
    return await call.service.state(call.caller.tenant, call.names["user"])


async def delete(call: Call) -> wire.DeleteAnswer:
    return await call.service.delete(call.caller.tenant, call.names["user"])


async def models(call: Call) -> wire.ModelsAnswer:
    return call.service.models()


async def reload(call: Call) -> wire.ReloadAnswer:
    return await call.service.reload(call.body.path)


async def status(call: Call) -> Status:
    return await call.service.status()


async def feedback(call: Call) -> wire.Feedback:
    return call.service.feedback()


async def healthz(call: Call) -> wire.Health:
    return call.service.health


async def readyz(call: Call) -> wire.Health:
    health = call.service.health
    if health.status != "ready":
        raise NotReadyError(f"the service is {health.status}")
    return health


async def metrics(call: Call) -> Reply:
    accept = call.headers.get("accept", "")
    # A scrape may wait for a running batch.
    body, kind = await asyncio.to_thread(call.service.metrics.render, accept)
    return Reply(body, content_type=kind.encode())


async def openapi(call: Call) -> Reply:
    return Reply(_document())


async def page(call: Call) -> Reply:
    return Reply(_page(), content_type=HTML.encode())


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "/v1/rank", rank, "Score candidates for a user.",
        body=wire.RankBody, answer=wire.RankAnswer, errors=(409, 504),
    ),
    Operation(
        "POST", "/v1/prefix", prefix, "Have a user's history encoded ahead of ranking; answers at once.",
        body=wire.PrefixBody, answer=wire.PrefixReply, errors=(404,),
    ),
    Operation(
        "POST", "/v1/events", events, "Append events of a user; durable when answered.",
        body=wire.EventsBody, answer=wire.EventsAnswer, errors=(409,),
    ),
    Operation(
        "GET", "/v1/users/{user:name}/state", state, "What is stored of a user, and what of it is cached.",
        answer=wire.StateAnswer,
    ),
    Operation(
        "PUT", "/v1/users/{user:name}/profile", set_profile, "Set a user's profile slots.",
        body=wire.ProfileBody, answer=wire.ProfileAnswer,
    ),
    Operation(
        "DELETE", "/v1/users/{user:name}", delete, "Remove a user from the store, the caches and the queues.",
        answer=wire.DeleteAnswer,
    ),
    Operation("GET", "/v1/models", models, "What is served, and its limits.", answer=wire.ModelsAnswer),
    Operation(
        "POST", "/v1/models/reload", reload, "Serve another model; a bad one leaves the present one serving.",
        body=wire.ReloadBody, answer=wire.ReloadAnswer, errors=(409,), admin=True, optional=True,
    ),
    Operation("GET", "/v1/status", status, "The last minutes in numbers.", answer=Status, open=True),
    Operation(
        "GET", "/v1/relay/feedback", feedback, "What a router wants to know of an instance.",
        answer=wire.Feedback, open=True,
    ),
    Operation("GET", "/healthz", healthz, "Whether the process lives.", answer=wire.Health, open=True),
    Operation(
        "GET", "/readyz", readyz, "Whether requests are served; 503 while starting and stopping.",
        answer=wire.Health, open=True,
    ),
    Operation(
        "GET", "/metrics", metrics, "Prometheus metrics.", open=True, content_type="text/plain",
    ),
    Operation("GET", "/openapi.json", openapi, "This document.", open=True),
    Operation("GET", "/", page, "The status page.", open=True, content_type="text/html"),
    *GENERATION,
    *SLATES,
    *OIP,
)  # fmt: skip


def build_app(service: Service, tracing: Tracing | None = None) -> ASGIApp:
    """The application; `service` is started and drained by whoever runs it.

    Raises:
        ConfigError: `serving.keys` holds a wrong key.
    """
    gatekeeper = Gatekeeper(service.config.serving.keys)
    routes = [
        Route(operation.path, Endpoint(operation, service, gatekeeper), methods=[operation.method])
        for operation in OPERATIONS
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: _no_route, Exception: _failed})
    inner.router.redirect_slashes = False
    return Envelope(inner, service, tracing or Tracing())


@functools.cache
def _document() -> bytes:
    return document(OPERATIONS)


@functools.cache
def _page() -> bytes:
    return (resources.files("relaygr.serving") / "page" / "index.html").read_bytes()


async def _no_route(request: Request, error: Exception) -> Response:
    """Paths and methods that are not there."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method"}.get(error.status_code, "http")
    text = f"{request.method} {request.url.path[:200]}: {error.detail.lower()}"
    return _response(request, Problem(error.status_code, code, text), dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    """What nobody foresaw; the server logs it."""
    return _response(request, internal_error(error), {})


def _response(request: Request, found: Problem, headers: dict[str, str]) -> Response:
    request.scope[ERROR] = found.code
    reply = Reply.problem(found, request.scope[REQUEST_ID])
    if request.url.path.startswith("/v2"):
        reply = oip_error(found, request.scope[REQUEST_ID])
    return Response(reply.body, found.status, headers, JSON.decode())
