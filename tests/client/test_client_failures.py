"""What goes wrong, what is tried again, and what never is."""

from __future__ import annotations

import random
import socket
import time
from dataclasses import replace

import httpx
import pytest
from client_server import APPENDED, PATIENT, RANKING, Ask, RawServer, Script, answering, read_request, refusal

from relaygr.client import (
    BadAnswerError,
    ClientError,
    DeadlineExceededError,
    Door,
    OverloadedError,
    RequestRejectedError,
    RetryPolicy,
    UnavailableError,
)
from relaygr.client.retry import RetryBudget

DOOR = Door("http://server", retries=PATIENT)
GOOD = httpx.Response(200, json=RANKING)
BUSY = refusal(503, "overload", retry_after_ms=1.0)
RANK = ("rank", "u", [1, 2])


@pytest.mark.parametrize(
    ("reply", "kind", "found"),
    [
        (
            refusal(422, "request", field="items", limit=5),
            RequestRejectedError,
            {"field": "items", "status": 422, "code": "request", "limit": 5},
        ),
        (refusal(409, "key"), RequestRejectedError, {"status": 409}),
        (refusal(401, "key_missing"), RequestRejectedError, {"status": 401, "code": "key_missing"}),
        (httpx.Response(404, text="<html>"), RequestRejectedError, {"status": 404, "code": ""}),
        (refusal(429, "tenant_busy", retry_after_ms=7.0), OverloadedError, {"retry_after_ms": 7.0}),
        (refusal(504, "deadline"), DeadlineExceededError, {}),
        (refusal(500, "backend"), BadAnswerError, {"status": 500, "code": "backend"}),
        (httpx.Response(302, headers={"location": "/"}), BadAnswerError, {"status": 302}),
        (httpx.Response(200, content=b'{"user": "u"'), BadAnswerError, {"status": 200}),
        (httpx.Response(200, content=b'{"user": "\xff"}'), BadAnswerError, {"status": 200}),
        (httpx.Response(200, json={**RANKING, "scores": [["high"]]}), BadAnswerError, {"status": 200}),
    ],
)
def test_answers_that_are_final(
    ask: Ask, reply: httpx.Response, kind: type[ClientError], found: dict[str, object]
) -> None:
    script = Script([reply])
    with pytest.raises(kind) as caught:
        ask(DOOR, *RANK, request_id="r-1", transport=script.transport)
    assert type(caught.value) is kind
    assert found == {name: getattr(caught.value, name) for name in found}
    assert caught.value.request_id == "r-1"
    assert "r-1" in str(caught.value)
    assert len(script.seen) == 1


def test_503_is_tried_again_with_the_same_id(ask: Ask) -> None:
    script = Script([BUSY, refusal(503, "not_ready"), GOOD])
    assert ask(DOOR, *RANK, transport=script.transport).path == "hit"
    assert len({request.headers["x-request-id"] for request in script.seen}) == 1
    assert len(script.seen) == 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (BUSY, OverloadedError),
        (refusal(503, "not_ready"), UnavailableError),
        (httpx.Response(503, text="upstream"), UnavailableError),
        (httpx.ConnectError("refused"), UnavailableError),
        (httpx.ReadError("reset"), UnavailableError),
        (httpx.RemoteProtocolError("cut"), UnavailableError),
    ],
)
def test_attempts_are_counted(ask: Ask, reply: httpx.Response | Exception, kind: type[ClientError]) -> None:
    script = Script([reply])
    with pytest.raises(kind):
        ask(DOOR, *RANK, transport=script.transport)
    assert len(script.seen) == PATIENT.attempts


@pytest.mark.parametrize("reply", [BUSY, httpx.ConnectError("refused"), httpx.ReadError("reset")])
@pytest.mark.parametrize(("call", "options"), [(("reload",), {}), (("append", "u", [1], [2]), {"key": None})])
def test_what_may_not_happen_twice_is_sent_once(
    ask: Ask, reply: httpx.Response | Exception, call: tuple[object, ...], options: dict[str, object]
) -> None:
    script = Script([reply])
    with pytest.raises((OverloadedError, UnavailableError)):
        ask(DOOR, *call, transport=script.transport, **options)  # type: ignore[arg-type]
    assert len(script.seen) == 1


def test_an_append_is_repeated_under_its_key(ask: Ask) -> None:
    script = Script([httpx.ReadError("reset"), BUSY, httpx.Response(200, json=APPENDED)])
    assert ask(DOOR, "append", "u", [1, 2], [3, 4], transport=script.transport).accepted == 2
    assert len(script.seen) == 3
    assert len({body["key"] for body in script.bodies()}) == 1


def test_each_attempt_sends_what_is_left_of_the_deadline(ask: Ask) -> None:
    script = Script([refusal(503, "overload", retry_after_ms=30.0), GOOD])
    ask(DOOR, *RANK, deadline_ms=5000, transport=script.transport)
    first, second = (body["deadline_ms"] for body in script.bodies())
    assert 4000 < first <= 5000
    assert 4000 < second <= first - 30


def test_a_pause_beyond_the_deadline_is_not_waited_for(ask: Ask) -> None:
    script = Script([refusal(503, "overload", retry_after_ms=60_000.0), GOOD])
    with pytest.raises(OverloadedError) as caught:
        ask(DOOR, *RANK, deadline_ms=5000, transport=script.transport)
    assert caught.value.retry_after_ms == 60_000
    assert len(script.seen) == 1


def test_a_budget_bounds_the_retries_of_all_calls(ask: Ask) -> None:
    script = Script([BUSY] * 13 + [GOOD])
    policy = RetryPolicy(attempts=100, base_ms=0.0, budget_burst=8.0, budget_ratio=0.5)
    door = replace(DOOR, retries=policy)
    with pytest.raises(OverloadedError):
        ask(door, *RANK, transport=script.transport)
    assert len(script.seen) == 9


def test_the_budget_is_earned_back() -> None:
    budget = RetryBudget(RetryPolicy(budget_ratio=0.25, budget_burst=1.0))
    assert (budget.spend(), budget.spend()) == (True, False)
    for _ in range(3):
        budget.earn()
    assert not budget.spend()
    for _ in range(100):
        budget.earn()
    assert (budget.spend(), budget.spend()) == (True, False)


def test_pauses_are_spread_grow_and_are_capped() -> None:
    policy, rng = RetryPolicy(base_ms=10, cap_ms=100), random.Random(0)
    for retry, top in ((0, 10), (1, 20), (3, 80), (4, 100), (5000, 100)):
        pauses = [policy.pause_ms(retry, 0.0, rng) for _ in range(500)]
        assert max(pauses) <= top
        assert min(pauses) < 0.1 * top
        assert max(pauses) > 0.9 * top
    assert policy.pause_ms(0, 250.0, rng) == 250.0


@pytest.mark.parametrize(
    ("field", "value"), [("attempts", 0), ("base_ms", float("nan")), ("budget_ratio", 1.1), ("cap_ms", -1)]
)
def test_a_policy_is_checked(field: str, value: float) -> None:
    with pytest.raises(RequestRejectedError, match=field):
        RetryPolicy(**{field: value})  # type: ignore[arg-type]


def cut_before_answering(connection: socket.socket) -> None:
    read_request(connection)
    connection.close()


def cut_in_the_body(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{"user"')
    connection.close()


def no_http(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"220 mail.example ready\r\n\r\n")
    connection.close()


def silent(connection: socket.socket) -> None:
    read_request(connection)
    time.sleep(5)


def trickling(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n")
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.05)


def endless(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")


def compressed_nonsense(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd")


@pytest.mark.parametrize("failing", [cut_before_answering, cut_in_the_body, no_http])
def test_a_connection_that_breaks_is_replaced(ask: Ask, failing: object) -> None:
    with RawServer(failing, answering(RANKING)) as server:  # type: ignore[arg-type]
        assert ask(replace(DOOR, url=server.url), *RANK).scores == [[0.5], [-1.25]]
        assert server.connections == 2


@pytest.mark.parametrize("failing", [cut_before_answering, cut_in_the_body])
def test_a_reload_on_a_connection_that_breaks_is_not_repeated(ask: Ask, failing: object) -> None:
    with RawServer(failing, answering({})) as server:  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            ask(replace(DOOR, url=server.url), "reload")
        assert server.connections == 1


@pytest.mark.parametrize("slow", [silent, trickling])
def test_a_slow_server_is_left_at_the_deadline(ask: Ask, slow: object) -> None:
    with RawServer(slow) as server:  # type: ignore[arg-type]
        start = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            ask(replace(DOOR, url=server.url), *RANK, deadline_ms=200)
        assert 0.15 < time.monotonic() - start < 4
        assert server.connections == 1


def test_the_time_of_calls_without_a_deadline_is_the_doors(ask: Ask) -> None:
    with RawServer(silent) as server, pytest.raises(DeadlineExceededError):
        ask(replace(DOOR, url=server.url, timeout_ms=150), "status")


def test_an_endless_answer_is_not_kept(ask: Ask) -> None:
    with RawServer(endless) as server, pytest.raises(BadAnswerError, match="more than 100000 bytes"):
        ask(replace(DOOR, url=server.url, answer_bytes=100_000), "status")


def test_an_answer_that_cannot_be_unpacked(ask: Ask) -> None:
    with RawServer(compressed_nonsense) as server, pytest.raises(BadAnswerError, match="cannot be read"):
        ask(replace(DOOR, url=server.url), "status")


def test_nobody_listens(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError):
        ask(replace(DOOR, url=f"http://127.0.0.1:{port}"), *RANK)


def test_connections_are_kept(ask: Ask) -> None:
    with RawServer(answering(RANKING)) as server:
        ask.each(replace(DOOR, url=server.url), [("rank", ("u", [1]), {})] * 5)
        assert server.connections == 1
