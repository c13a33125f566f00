"""Wrong requests: each gets one documented answer, and the next request is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving_apps import App, error_of, running, settings

JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def still_serves(app: App) -> Iterator[None]:
    """Whatever a test did, nothing is left in progress and the next request is answered."""
    yield
    assert app.post("/v1/rank", {"user": "after", "candidates": [1, 2]})["scores"]
    assert app.service.admissions.in_progress == 0
    assert not app.service._ranking


def send(app: App, data: bytes, path: str = "/v1/rank") -> Any:
    return app.call("POST", path, content=data, headers=JSON)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"user": "u", "candidates": [NaN]}',
        b'{"user": "u", "candidates": [Infinity]}',
        b'{"user": "u", "candidates": [1], "deadline_ms": NaN}',
        b'{"user": "u", "candidates": [01]}',
        b'{"user": "u", "candidates": [1],}',
        b'{"user": "\xff\xfe", "candidates": []}',
        b'{"user": "\\ud800", "candidates": []}',
        b'\xef\xbb\xbf{"user": "u", "candidates": []}',
        b'{"user": "u", "candidates": []} {}',
        b"\x00" * 50,
        b'{"user": "u", "x": ' + b"[" * 200_000,
        b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
    ],
)
def test_what_is_not_json(app: App, data: bytes) -> None:
    answer = send(app, data)
    if b'"x"' in data:  # an unknown field is found before what is wrong in it
        assert answer.status_code in (400, 422)
    else:
        error_of(answer, 400, "json")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("null", ""),
        ("[]", ""),
        ('"text"', ""),
        ("{}", ""),
        ('{"user": "u"}', ""),
        ('{"user": "u", "candidates": [1], "extra": 1}', ""),
        ('{"user": 7, "candidates": [1]}', "user"),
        ('{"user": null, "candidates": [1]}', "user"),
        ('{"user": "", "candidates": [1]}', "user"),
        ('{"user": "a\\u0000b", "candidates": [1]}', "user"),
        ('{"user": "' + "x" * 257 + '", "candidates": [1]}', "user"),
        ('{"user": "' + "x" * 900_000 + '", "candidates": [1]}', "user"),
        ('{"user": "' + "ü" * 200 + '", "candidates": [1]}', "user"),
        ('{"user": "u", "candidates": 1}', "candidates"),
        ('{"user": "u", "candidates": {"0": 1}}', "candidates"),
        ('{"user": "u", "candidates": [1.5]}', "candidates[0]"),
        ('{"user": "u", "candidates": [1, "2"]}', "candidates[1]"),
        ('{"user": "u", "candidates": [true]}', "candidates[0]"),
        ('{"user": "u", "candidates": [[1]]}', "candidates[0]"),
        ('{"user": "u", "candidates": [9223372036854775808]}', "candidates[0]"),
        ('{"user": "u", "candidates": [-9223372036854775809]}', "candidates[0]"),
        ('{"user": "u", "candidates": [' + "9" * 5000 + "]}", "candidates[0]"),
        ('{"user": "u", "candidates": [1e400]}', "candidates[0]"),
        ('{"user": "u", "candidates": ' + json.dumps([1] * 601) + "}", "candidates"),
        ('{"user": "u", "candidates": [1], "query_time": 100000000000}', "query_time"),
        ('{"user": "u", "candidates": [1], "query_time": -1}', "query_time"),
        ('{"user": "u", "candidates": [1, 2], "query_time": [1, 2]}', "query_time"),
        ('{"user": "u", "candidates": [1], "deadline_ms": 0}', "deadline_ms"),
        ('{"user": "u", "candidates": [1], "deadline_ms": -5}', "deadline_ms"),
        ('{"user": "u", "candidates": [1], "deadline_ms": 60001}', "deadline_ms"),
        ('{"user": "u", "candidates": [1], "deadline_ms": 1e308}', "deadline_ms"),
        ('{"user": "u", "candidates": [1], "output": "softmax"}', "output"),
        ('{"user": "u", "candidates": [1], "top_k": 0}', "top_k"),
        ('{"user": "u", "candidates": [1], "history": {"items": [1]}}', "history"),
        (
            '{"user": "u", "candidates": [1], "history": {"items": [1], "timestamps": []}}',
            "history.timestamps",
        ),
        (
            '{"user": "u", "candidates": [1], "history": {"items": [1,2], "timestamps": [2,1]}}',
            "history.timestamps",
        ),
        (
            '{"user": "u", "candidates": [1], "history": {"items": [1], "timestamps": [1], "actions": [-1]}}',
            "history.actions[0]",
        ),
        (
            '{"user": "u", "candidates": [], "history": {"items": [], "timestamps": [], "contextual": [5]}}',
            "contextual",
        ),
        (
            '{"user":"u", "candidates":[], "history": {"items":[], "timestamps":[], "utc_offset_s":90000}}',
            "history.utc_offset_s",
        ),
    ],
)
def test_json_with_something_wrong_in_it(app: App, body: str, field: str) -> None:
    error_of(send(app, body.encode()), 422, "request", field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"user": "h", "items": [1], "timestamps": [1, 2]}, "timestamps"),
        ({"user": "h", "items": [1, 2], "timestamps": [1, 2], "actions": [1]}, "actions"),
        ({"user": "h", "items": [1], "timestamps": [10**11]}, "timestamps[0]"),
        ({"user": "h", "items": [1], "timestamps": [1], "actions": [-1]}, "actions[0]"),
        ({"user": "h", "items": [1], "timestamps": [1], "key": ""}, "key"),
        ({"user": "h", "items": [1], "timestamps": [1], "key": "a\0"}, "key"),
        ({"user": "h", "items": [1] * 65_537, "timestamps": [1] * 65_537}, "items"),
    ],
)
def test_wrong_events_change_nothing(app: App, body: dict[str, Any], field: str) -> None:
    error_of(app.call("POST", "/v1/events", body), 422, "request", field)
    assert app.call("GET", "/v1/users/h/state").json()["events"] == 0


def test_of_duplicate_keys_the_last_counts(app: App) -> None:
    answer = send(app, b'{"user": "a", "candidates": [1, 2], "user": "b", "candidates": [3]}')
    assert (answer.json()["user"], len(answer.json()["scores"])) == ("b", 1)


def test_a_body_that_says_it_is_too_large_is_not_read(app: App) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    headers = {**JSON, "content-length": str(100_000_000)}
    answer = app.call("POST", "/v1/events", content=never(), headers=headers)
    error = error_of(answer, 413, "body_size", "content-length")
    assert error["limit"] == 1 << 20
    assert answer.headers["connection"] == "close"
    for text in ("9" * 30, "1" * 19):
        answer = app.call("POST", "/v1/rank", content=never(), headers={**JSON, "content-length": text})
        error_of(answer, 413, "body_size")


def test_a_body_without_length_is_read_up_to_the_limit(app: App) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65_536
            yield b" " * 65_536

    error_of(app.call("POST", "/v1/rank", content=endless(), headers=JSON), 413, "body_size")
    assert sent <= (1 << 20) + 3 * 65_536


def test_a_body_that_does_not_end_is_given_up(model_folder: Path) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b'{"user": '
        await asyncio.sleep(30)

    with running(settings(model_folder, body_timeout_s=0.1)) as app:
        error_of(app.call("POST", "/v1/rank", content=stuck(), headers=JSON), 408, "body_slow")
        assert app.service.admissions.in_progress == 0


@pytest.mark.parametrize(
    ("headers", "code", "field"),
    [
        ({"content-type": "text/plain"}, "type", "content-type"),
        ({"content-type": "application/x-www-form-urlencoded"}, "type", "content-type"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "encoding", "content-encoding"),
    ],
)
def test_bodies_of_another_type(app: App, headers: dict[str, str], code: str, field: str) -> None:
    answer = app.call("POST", "/v1/rank", content=b'{"user":"u","candidates":[1]}', headers=headers)
    error_of(answer, 415, code, field)


def test_a_charset_is_no_other_type(app: App) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answer = app.call("POST", "/v1/rank", content=b'{"user":"u","candidates":[1]}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/rank/", 404, "not_found"),
        ("GET", "/v1/users//state", 422, "request"),
        ("DELETE", "/v1/users/", 422, "request"),
        ("GET", "/v1/rank", 405, "method"),
        ("PATCH", "/v1/users/u", 405, "method"),
        ("POST", "/healthz", 405, "method"),
        ("GET", "/v1/users/%FF/state", 400, "path"),
        ("DELETE", "/v1/users/%C3", 400, "path"),
        ("GET", "/v1/users/a%00b/state", 422, "request"),
        ("GET", f"/v1/users/{'x' * 257}/state", 422, "request"),
    ],
)
def test_wrong_paths(app: App, method: str, path: str, status: int, code: str) -> None:
    answer = app.call(method, path)
    error_of(answer, status, code)
    if status == 405:
        assert answer.headers["allow"]


def test_a_replacement_character_may_be_meant(app: App) -> None:
    assert app.call("GET", "/v1/users/%EF%BF%BD/state").json()["user"] == "\ufffd"


def test_reload_refuses_paths_that_no_file_has(app: App) -> None:
    error_of(app.call("POST", "/v1/models/reload", {"path": "a\0b"}), 422, "model")
    error_of(app.call("POST", "/v1/models/reload", {"path": ""}), 422, "request", "path")


def test_a_deadline_that_cannot_be_met(app: App) -> None:
    app.service.engine._lock.acquire()
    try:
        answer = app.call("POST", "/v1/rank", {"user": "slow", "candidates": [1], "deadline_ms": 30})
    finally:
        app.service.engine._lock.release()
    error_of(answer, 504, "deadline")
