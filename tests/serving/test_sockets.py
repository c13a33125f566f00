"""What only a real connection shows: bodies that are refused unread, clients that go away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live_service import Live, answer_of, connect, live_service
from serving_apps import settings

from patience import await_true

HEAD = b"POST /v1/rank HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
BODY = b'{"user": "u", "candidates": [1, 2]}'
WHOLE = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def live(model_folder: Path) -> Iterator[Live]:
    with live_service(settings(model_folder, body_limit_bytes=1 << 20)) as found:
        yield found


def still_serves(live: Live) -> None:
    answer = httpx.post(f"{live.url}/v1/rank", json={"user": "u", "candidates": [1, 2]}, timeout=30)
    assert answer.status_code == 200
    assert live.service.admissions.in_progress == 0


def test_100_megabytes_are_refused_before_they_are_sent(live: Live) -> None:
    with connect(live) as caller:
        caller.sendall(HEAD + b"content-length: 100000000\r\n\r\n")
        answer = answer_of(caller)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"limit":1048576' in answer
    still_serves(live)


def test_chunks_without_end_are_refused_at_the_limit(live: Live) -> None:
    chunk = b"%x\r\n" % 65_536 + b" " * 65_536 + b"\r\n"
    sent = 0
    with connect(live) as caller:
        caller.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        try:
            while sent < 100_000_000:
                caller.sendall(chunk)
                sent += len(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = answer_of(caller)
    # What was on the wire beyond the limit is small; the answer may be lost with the reset.
    assert sent < 20_000_000
    assert not answer or answer.startswith(b"HTTP/1.1 413")
    still_serves(live)


def test_what_is_not_http(live: Live) -> None:
    with connect(live) as caller:
        caller.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")
        assert answer_of(caller).startswith(b"HTTP/1.1 400")
    still_serves(live)


def test_a_client_that_leaves_within_its_body(live: Live) -> None:
    with connect(live) as caller:
        caller.sendall(WHOLE[:-5])
        await_true(lambda: live.service.admissions.in_progress == 1)
    await_true(lambda: live.service.admissions.in_progress == 0)
    still_serves(live)


def test_a_disconnect_frees_the_slot_of_a_request(live: Live) -> None:
    engine, scheduler = live.service.engine, live.service.scheduler
    engine._lock.acquire()
    try:
        callers = [connect(live) for _ in range(4)]
        for caller in callers:
            caller.sendall(WHOLE)
        await_true(lambda: live.service.admissions.in_progress == 4)
        for caller in callers:
            caller.close()
        # Even the one whose batch is running is let go.
        await_true(lambda: live.service.admissions.in_progress == 0)
        assert scheduler.load().ranks == 0
    finally:
        engine._lock.release()
    text = httpx.get(f"{live.url}/metrics").text
    assert [line for line in text.splitlines() if "disconnect" in line and line.endswith(" 4.0")], text
    still_serves(live)


def test_many_requests_on_one_connection(live: Live) -> None:
    with httpx.Client(base_url=live.url, timeout=30) as client:
        answers = [client.post("/v1/rank", json={"user": "u", "candidates": [1, 2]}) for _ in range(20)]
        answers += [client.post("/v1/rank", content=b"{"), client.get("/healthz")]
    assert [answer.status_code for answer in answers] == [200] * 20 + [400, 200]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 22
