"""Streamed events on their way to the instance that has the user."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from stream_sinks import ListSink

from relaygr.config.settings import ApiKey
from relaygr.core.errors import BackendError, NotReadyError, OverloadError, RelayError
from relaygr.core.ids import session_key
from relaygr.relay.route import Lap, Route
from relaygr.serving import wire
from relaygr.serving.errors import HttpError
from relaygr.serving.forward import Delivered, Errand, Here
from relaygr.serving.laps import HOP, SESSION
from relaygr.serving.links import Answer
from relaygr.serving.stream.sinks import Routed, refused

ROUTE = Route("a", 1)
BODY = wire.EventsBody(user="u", items=[7], timestamps=[5], source="s", offsets=["3-1"])
TAKEN = wire.EventsAnswer("u", 1, 1, 0, 0, False)


class Forwarder:
    """Gives one answer to everything."""

    def __init__(self, found: Any) -> None:
        self.found, self.errands, self.ended = found, [], []  # type: ignore[var-annotated]

    async def send(self, errand: Errand, gone: asyncio.Future[None]) -> Any:
        assert not gone.done()
        self.errands.append(errand)
        if isinstance(self.found, RelayError):
            raise self.found
        return self.found

    def done(self, route: Route) -> None:
        self.ended.append(route)


def sent(forwarder: Forwarder, keys: tuple[ApiKey, ...] = (), here: Any = None) -> wire.EventsAnswer:
    work: Coroutine[Any, Any, wire.EventsAnswer] = Routed(forwarder, keys, here, 5.0).append("shop", BODY)  # type: ignore[arg-type]
    return asyncio.run(work)


def delivered(status: int, body: Any) -> Delivered:
    return Delivered(
        ROUTE, Answer(status, [], body if isinstance(body, bytes) else msgspec.json.encode(body))
    )


def test_it_is_the_post_that_a_client_would_send() -> None:
    forwarder = Forwarder(delivered(200, TAKEN))
    assert sent(forwarder) == TAKEN
    (errand,) = forwarder.errands
    assert (errand.letter.method, errand.letter.target) == ("POST", "/v1/events")
    assert (errand.key, errand.lap, errand.repeatable) == (session_key("shop", "u"), Lap.OTHER, True)
    assert msgspec.json.decode(errand.letter.body, type=wire.EventsBody) == BODY
    headers = errand.letter.headers
    assert (headers["x-tenant"], headers[HOP], headers[SESSION]) == ("shop", "1", errand.key)


def test_with_keys_the_tenants_first_one_is_used() -> None:
    keys = tuple(ApiKey(key=letter * 16, tenant=tenant) for letter, tenant in (("a", "x"), ("b", "shop")))
    forwarder = Forwarder(delivered(200, TAKEN))
    sent(forwarder, (*keys, ApiKey(key="c" * 16, tenant="shop")))
    headers = forwarder.errands[0].letter.headers
    assert headers["authorization"] == f"Bearer {'b' * 16}"
    assert "x-tenant" not in headers


def test_own_users_stay_here() -> None:
    async def run() -> None:
        forwarder, here = Forwarder(Here(ROUTE)), ListSink()
        answer = await Routed(forwarder, (), here, 5.0).append("shop", BODY)  # type: ignore[arg-type]
        assert (answer.accepted, here.taken, forwarder.ended) == (1, [("shop", "u", 7)], [ROUTE])
        failing = ListSink(answers=[BackendError("full")])
        with pytest.raises(BackendError):
            await Routed(forwarder, (), failing, 5.0).append("shop", BODY)  # type: ignore[arg-type]
        assert forwarder.ended == [ROUTE, ROUTE]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (422, True),
        (409, True),
        (400, True),
        (413, True),
        (401, False),
        (429, False),
        (500, False),
        (503, False),
    ],
)
def test_what_an_instance_says_is_final_or_passes(status: int, final: bool) -> None:
    error = wire.ErrorAnswer(wire.ErrorDetail("code", "items: 5", "items", "id"))
    with pytest.raises(HttpError if final else OverloadError) as caught:
        sent(Forwarder(delivered(status, error)))
    assert refused(caught.value) is final
    assert not final or str(caught.value) == "items: 5"


def test_what_is_no_answer_passes() -> None:
    for body in (b"<html>", b"{}"):
        for status in (200, 502):
            with pytest.raises(BackendError) as caught:
                sent(Forwarder(delivered(status, body)))
            assert not refused(caught.value)


def test_nobody_is_there() -> None:
    with pytest.raises(NotReadyError) as caught:
        sent(Forwarder(NotReadyError("no instance is ready")))
    assert not refused(caught.value)
