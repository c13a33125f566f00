"""An application asked without a socket answers as over one, and hears when nobody waits any more."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from relaygr.serving.exposition import merged
from relaygr.serving.inside import Inside, scope_of


def test_a_request_goes_in_and_its_answer_comes_out() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        told = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": told, "more_body": True})
        await send({"type": "http.response.body", "body": body})

    answer = asyncio.run(Inside(app).ask("POST", "/a%2Fb/%C3%A4?q=%20", [(b"h", b"v")], b"body"))
    assert (answer.status, answer.headers) == (201, [(b"x", b"y")])
    assert answer.body == "POST /a/b/ä q=%20 body".encode()
    assert scope_of("GET", "/a%2Fb", [])["raw_path"] == b"/a%2Fb"


def test_the_application_hears_that_nobody_waits() -> None:
    heard: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        heard.append((await receive())["type"])

    async def scenario() -> None:
        inside = Inside(app)
        asking = asyncio.create_task(inside.ask("GET", "/", [], b""))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0.01)
        assert heard == ["http.disconnect"]
        assert not inside._running

    asyncio.run(scenario())


def test_an_error_after_the_answer_is_logged_and_one_before_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 500, "headers": []})
        raise ValueError("broken")

    assert asyncio.run(Inside(app).ask("GET", "/late", [], b"")).status == 500
    assert "GET /late failed" in caplog.text
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(Inside(app).ask("GET", "/", [], b""))


def test_pages_of_metrics_become_one() -> None:
    first = '# HELP a_total All\n# TYPE a_total counter\na_total{x="1, 2"} 3.0\n# TYPE b gauge\nb 1.0\n'
    second = "# HELP a_total Others\n# TYPE a_total counter\na_total 4.0\n!nonsense\n"
    assert merged({"r1": first, "r2": second}) == (
        '# HELP a_total All\n# TYPE a_total counter\na_total{replica="r1",x="1, 2"} 3.0\n'
        'a_total{replica="r2"} 4.0\n# TYPE b gauge\nb{replica="r1"} 1.0\n'
    )
