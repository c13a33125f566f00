"""Logs are JSON, one line a record, and say nothing of users and items unless asked."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import structlog
from live_service import live_service

from relaygr.core.errors import BackendError
from relaygr.serving import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the lines go; everything that is global is put back."""
    root, uvicorn = (
        logging.getLogger(),
        [logging.getLogger(f"uvicorn{name}") for name in ("", ".error", ".access")],
    )
    before = root.handlers[:], root.level
    kept = [(log, log.handlers[:], log.propagate) for log in uvicorn]
    yield io.StringIO()
    root.handlers[:], level = before
    root.setLevel(level)
    for log, handlers, propagate in kept:
        log.handlers[:], log.propagate = handlers, propagate
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_one_line(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    with logs.bound(request_id="r-1", trace_id="ab" * 16, nothing=""):
        logs.answered("POST", "/v1/rank", 200, 0.0123456, tenant="shop", queue_ms=1.5)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "relaygr.request",
        "event": "request",
        "method": "POST",
        "route": "/v1/rank",
        "status": 200,
        "ms": 12.346,
        "tenant": "shop",
        "queue_ms": 1.5,
        "request_id": "r-1",
        "trace_id": "ab" * 16,
    }


def test_the_fields_of_a_request_end_with_it(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    with logs.bound(request_id="r-1"):
        logging.getLogger("relaygr.engine").info("inside")
    logging.getLogger("relaygr.engine").info("outside")
    inside, outside = lines(stream)
    assert inside["request_id"] == "r-1"
    assert inside["logger"] == "relaygr.engine"
    assert "request_id" not in outside


@pytest.mark.parametrize(
    ("route", "status", "level"),
    [
        ("/v1/rank", 200, "info"),
        ("/v1/rank", 422, "info"),
        ("/v1/rank", 500, "warning"),
        ("/readyz", 503, "warning"),
        ("/readyz", 200, "debug"),
        ("/metrics", 200, "debug"),
    ],
)
def test_the_level_says_who_is_at_fault(stream: io.StringIO, route: str, status: int, level: str) -> None:
    logs.configure("debug", stream=stream)
    logs.answered("GET", route, status, 0.001, error="overload" if status >= 500 else "")
    (line,) = lines(stream)
    assert line["level"] == level
    assert line.get("error") == ("overload" if status >= 500 else None)


def test_polling_leaves_no_line_at_level_info(stream: io.StringIO) -> None:
    logs.configure("info", stream=stream)
    logs.answered("GET", "/v1/status", 200, 0.001)
    assert stream.getvalue() == ""


def test_users_and_items_are_hidden_from_info_up(stream: io.StringIO) -> None:
    logs.configure("debug", stream=stream)
    log = structlog.stdlib.get_logger("relaygr.serving")
    log.debug("seen", user="user-77", items=[4242])
    log.warning("seen", user="user-77", items=[4242], tokens=3)
    debug, warning = lines(stream)
    assert debug["user"] == "user-77"
    assert debug["items"] == [4242]
    assert (warning["user"], warning["items"], warning["tokens"]) == (logs.HIDDEN, logs.HIDDEN, 3)


def test_they_are_shown_when_that_is_configured(stream: io.StringIO) -> None:
    logs.configure("info", personal=True, stream=stream)
    structlog.stdlib.get_logger("relaygr.serving").warning("seen", user="user-77")
    assert lines(stream)[0]["user"] == "user-77"


def failed() -> None:
    try:
        try:
            {}["user-77"]
        except KeyError as error:
            raise BackendError("scores of user 'user-77' are not finite") from error
    except BackendError:
        logging.getLogger("relaygr.engine").exception("a rank batch failed")


def test_an_exception_says_where_but_not_of_whom(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    failed()
    (line,) = lines(stream)
    assert "user-77" not in stream.getvalue()
    assert line["event"] == "a rank batch failed"
    first, cause = line["exception"]
    assert (first["type"], cause["type"]) == ("BackendError", "KeyError")
    assert first["at"][-1].endswith(" failed")


def test_an_exception_says_all_when_that_is_configured(stream: io.StringIO) -> None:
    logs.configure(personal=True, stream=stream)
    failed()
    assert lines(stream)[0]["exception"][0]["message"] == "scores of user 'user-77' are not finite"


def test_a_fault_of_the_machine_keeps_its_message(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        structlog.stdlib.get_logger("relaygr.serving").exception("the store failed")
    assert lines(stream)[0]["exception"][0]["message"] == "[Errno 28] No space left on device"


def test_a_long_chain_of_errors_is_cut(stream: io.StringIO) -> None:
    logs.configure(stream=stream)

    def dig(depth: int) -> None:
        if depth:
            dig(depth - 1)
        raise ValueError(depth)

    head: BaseException = ValueError("head")
    newest = head
    for _ in range(20):
        newest.__cause__ = ValueError("older")
        newest = newest.__cause__
    try:
        dig(200)
    except ValueError as deep:
        deep.__cause__ = head
        logging.getLogger("relaygr.engine").exception("deep")
    (line,) = lines(stream)
    assert len(line["exception"]) == 5
    assert len(line["exception"][0]["at"]) == 30


def test_uvicorn_speaks_json_and_its_access_log_is_silent(stream: io.StringIO) -> None:
    for name in ("uvicorn", "uvicorn.access"):
        logging.getLogger(name).addHandler(logging.StreamHandler(io.StringIO()))
    logs.configure(stream=stream)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("uvicorn.access").info(
        '%s - "%s %s HTTP/%s" %d', "peer", "GET", "/v1/users/u7", "1.1", 200
    )
    (line,) = lines(stream)
    assert line["event"] == "Started server process [7]"
    assert line["logger"] == "uvicorn.error"


def test_lines_below_the_level_are_not_made(stream: io.StringIO) -> None:
    logs.configure("warning", stream=stream)
    logs.answered("POST", "/v1/rank", 200, 0.001)
    structlog.stdlib.get_logger("relaygr.serving").info("quiet")
    assert stream.getvalue() == ""


def test_whatever_is_logged_stays_one_line_of_json(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    logging.getLogger("relaygr").warning("two\nlines \x00 and \udc80")
    structlog.stdlib.get_logger("relaygr").warning("a thing", thing=object(), size=float("nan"))
    assert len(lines(stream)) == 2


def test_a_service_logs_its_requests_and_no_users(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("info", stream=stream)
    monkeypatch.setattr(logging.getLogger("httpx"), "disabled", True)  # the client of this test
    parent = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "x-request-id": "request-9"}
    with live_service() as live, httpx.Client(base_url=live.url, timeout=30) as client:
        body = {"user": "user-77", "items": [4242], "timestamps": [1_700_000_000]}
        assert client.post("/v1/events", json=body).status_code == 200
        assert client.post(
            "/v1/rank", json={"user": "user-77", "candidates": [4242]}, headers=parent
        ).is_success
        assert client.post("/v1/rank", json={"user": "user-77", "candidates": ["x"]}).status_code == 422
        assert client.delete("/v1/users/user-77").is_success
        assert client.get("/readyz").is_success
    found = [line for line in lines(stream) if line["event"] == "request"]
    assert [line["route"] for line in found[:3]] == ["/v1/events", "/v1/rank", "/v1/rank"]
    assert (len(found), found[3]["method"]) == (4, "DELETE")
    assert found[3]["route"].startswith("/v1/users/{user")
    assert (found[1]["request_id"], found[1]["trace_id"]) == ("request-9", "ab" * 16)
    assert (found[2]["status"], found[2]["error"]) == (422, "request")
    assert "user-77" not in stream.getvalue()
    assert "4242" not in stream.getvalue()
