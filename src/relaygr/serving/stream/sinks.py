"""Where a consumer puts events: what a POST of them would have done, here or at the user's instance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

import msgspec

from relaygr.config.settings import ApiKey
from relaygr.core.errors import BackendError, OverloadError, RelayError, RequestError
from relaygr.core.ids import session_key
from relaygr.relay.route import Lap
from relaygr.serving import wire
from relaygr.serving.auth import TENANT_HEADER
from relaygr.serving.errors import DEFAULT_RETRY_MS, HttpError
from relaygr.serving.forward import Errand, Forwarder, Here
from relaygr.serving.laps import HOP, SESSION
from relaygr.serving.links import Answer, letter

# Statuses that the same events will get again, however often they are sent.
_REFUSALS = frozenset(
    (
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.CONFLICT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    )
)
_PATH = b"/v1/events"


class Sink(Protocol):
    """Takes events of a user. They are durable, and part of the next ranking, when `append` returns."""

    async def append(self, tenant: str, body: wire.EventsBody) -> wire.EventsAnswer:
        """Raises what `refused` is about for events that are wrong, else a RelayError that may be passing."""


class Routed:
    """Sends events to the instance that has the user, by the rules of a POST."""

    def __init__(self, forwarder: Forwarder, keys: Sequence[ApiKey], here: Sink | None, timeout_s: float):
        """
        Args:
            keys: with which the instances are called.
            here: takes the events of this instance's own users; None in a gateway.
            timeout_s: longest wait for an answer.
        """
        self._forwarder, self._here, self._timeout_s = forwarder, here, timeout_s
        self._keys = {entry.tenant: entry.key for entry in reversed(keys)}
        self._gone: asyncio.Future[None] | None = None

    async def append(self, tenant: str, body: wire.EventsBody) -> wire.EventsAnswer:
        if self._gone is None:  # nobody who waits for the answer leaves
            self._gone = asyncio.get_running_loop().create_future()
        found = await self._forwarder.send(self._errand(tenant, body), self._gone)
        if not isinstance(found, Here):
            return _answer(found.answer)
        assert self._here is not None
        try:
            return await self._here.append(tenant, body)
        finally:
            self._forwarder.done(found.route)

    def _errand(self, tenant: str, body: wire.EventsBody) -> Errand:
        key = session_key(tenant, body.user)
        headers = [(b"content-type", b"application/json")]
        if tenant in self._keys:
            headers.append((b"authorization", f"Bearer {self._keys[tenant]}".encode()))
        else:
            headers.append((TENANT_HEADER.encode(), tenant.encode()))
        sent = letter("POST", _PATH, b"", headers, msgspec.json.encode(body), {SESSION: key, HOP: "1"})
        return Errand(sent, Lap.OTHER, key, None, True, self._timeout_s)


_events_answer = msgspec.json.Decoder(wire.EventsAnswer)
_error_answer = msgspec.json.Decoder(wire.ErrorAnswer)


def _answer(answer: Answer) -> wire.EventsAnswer:
    try:
        if answer.status == HTTPStatus.OK:
            return _events_answer.decode(answer.body)
        error = _error_answer.decode(answer.body).error
    except msgspec.MsgspecError as wrong:
        raise BackendError(f"an instance answered {answer.status} with what is no answer") from wrong
    if answer.status in _REFUSALS:
        raise HttpError(answer.status, error.code, error.message, field=error.field)
    raise OverloadError(
        f"an instance answered {answer.status}, {error.code}", error.retry_after_ms or DEFAULT_RETRY_MS
    )


def refused(error: RelayError) -> bool:
    """Whether events are wrong, so that nothing comes of trying them again."""
    if isinstance(error, HttpError):
        return error.status in _REFUSALS
    return isinstance(error, RequestError)
