"""Heads of requests over real sockets: sizes, times, upgrades; and names that paths could confuse."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from serving_apps import Server
from serving_apps import server as running_server
from test_sockets import BODY, HEAD, answer_of


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("heads")
    with running_server(folder, model_folder, "serving.body_timeout_s=1") as found:
        found.wait_ready()
        yield found


def send(server: Server, *parts: bytes, pause_s: float = 0.0) -> bytes:
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=30) as caller:
        caller.settimeout(30)
        try:
            for part in parts:
                caller.sendall(part)
                time.sleep(pause_s)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answer_of(caller)


def still_serves(server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/rank", json={"user": "u", "candidates": [1]}, timeout=30)
    assert answer.status_code == 200


def test_headers_without_end_are_refused(server: Server) -> None:
    lines = b"x-n: y\r\n" * 1000
    answer = send(server, b"GET /v1/models HTTP/1.1\r\nhost: h\r\n", *[lines] * 200)
    assert answer.startswith(b"HTTP/1.1 431") or not answer  # the answer may be lost with the reset
    value = b"x" * 100_000
    assert send(server, b"GET /healthz HTTP/1.1\r\nhost: h\r\nx-n: ", value).startswith(b"HTTP/1.1 431")
    whole = b"GET /healthz HTTP/1.1\r\nhost: h\r\nx-n: " + value + b"\r\n\r\n"
    assert send(server, whole).startswith(b"HTTP/1.1 431")
    still_serves(server)


def test_a_head_and_a_body_that_do_not_come_time_out(server: Server) -> None:
    begun = time.monotonic()
    assert send(server, b"G").startswith(b"HTTP/1.1 408")
    assert send(server, HEAD + b"content-length: 30\r\n\r\n").startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun < 20
    still_serves(server)


def test_a_large_body_right_behind_its_head_is_no_large_head(server: Server) -> None:
    items = ",".join(["1"] * 60_000)
    body = b'{"user": "u", "candidates": [1], "history": {"items": [%s], "timestamps": [%s]}}' % (
        items.encode(),
        items.encode(),
    )
    text = HEAD + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
    assert send(server, text).startswith((b"HTTP/1.1 200", b"HTTP/1.1 422"))


def test_an_upgrade_is_ignored(server: Server) -> None:
    asked = b"connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    head = HEAD + asked + b"content-length: %d\r\n\r\n" % len(BODY)
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=30) as caller:
        caller.settimeout(30)
        caller.sendall(head + BODY)
        assert caller.recv(65_536).startswith(b"HTTP/1.1 200")


def test_a_name_with_a_line_break_is_nobody_else(server: Server) -> None:
    events = {"items": [1], "timestamps": [1_700_000_000]}
    assert httpx.post(f"{server.url}/v1/events", json={"user": "alice", **events}).status_code == 200
    refused = httpx.post(f"{server.url}/v1/events", json={"user": "alice\n", **events})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "user")
    for name in ("alice\n", "al\nice", "\nalice"):
        assert httpx.delete(f"{server.url}/v1/users/{quote(name)}").status_code == 422
    assert httpx.get(f"{server.url}/v1/users/alice/state").json()["events"] == 1


def test_events_that_could_never_be_ranked_are_refused(server: Server) -> None:
    bad = {"user": "bits", "items": [1], "timestamps": [1_700_000_000], "actions": [1 << 40]}
    refused = httpx.post(f"{server.url}/v1/events", json=bad)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "actions")
    answer = httpx.post(f"{server.url}/v1/rank", json={"user": "bits", "candidates": [1]}, timeout=30)
    assert answer.status_code == 200


def test_fields_of_an_inline_history_say_so(server: Server) -> None:
    body = {"user": "u", "candidates": [1], "history": {"items": [1, 2], "timestamps": [1]}}
    refused = httpx.post(f"{server.url}/v1/rank", json=body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "history.timestamps")
