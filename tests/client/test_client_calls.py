"""What each call sends and how its answer is read."""

from __future__ import annotations

import subprocess
import sys

import httpx
import numpy as np
import pytest
from client_server import APPENDED, RANKING, Ask, Script

from relaygr.client import Door, RequestRejectedError, history

DOOR = Door("http://server", tenant="shop")
MODEL = {
    "name": "ranker",
    "model": "ab",
    "path": "model",
    "family": "hstu",
    "cacheable": "append",
    "tasks": ["engage"],
    "contextual": [],
    "query_times": "request",
    "limits": {"candidates": 9, "history": 8, "body_bytes": 7, "deadline_ms": 6.0},
    "dtype": "fp32",
    "kernel": "cpu",
    "loaded_s": 1.0,
    "config": {"family": "hstu"},
}


def test_rank_sends_what_it_was_given(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=RANKING)])
    sent = history(np.array([5, 2**63 - 1]), [10, 11], actions=range(2), contextual=[4], utc_offset_s=60)
    answer = ask(
        DOOR,
        "rank",
        "u",
        np.array([7, -1]),
        query_time=[12, 13],
        history=sent,
        top_k=1,
        output="probabilities",
        transport=script.transport,
    )
    (body,) = script.bodies()
    assert body == {
        "user": "u",
        "candidates": [7, -1],
        "query_time": [12, 13],
        "history": {
            "items": [5, 2**63 - 1],
            "timestamps": [10, 11],
            "actions": [0, 1],
            "contextual": [4],
            "utc_offset_s": 60,
        },
        "output": "probabilities",
        "top_k": 1,
    }
    assert str(script.seen[0].url) == "http://server/v1/rank"
    assert answer.scores == [[0.5], [-1.25]]
    assert (answer.path, answer.tasks, answer.order) == ("hit", ("engage",), None)


@pytest.mark.parametrize(
    ("method", "arguments", "sent", "path", "answer"),
    [
        ("state", ("a/b",), "GET", "/v1/users/a%2Fb/state", None),
        ("delete", ("..",), "DELETE", "/v1/users/%2E%2E", {"user": "..", "events": 3, "entries": 1}),
        (
            "set_profile",
            ("ü", [1]),
            "PUT",
            "/v1/users/%C3%BC/profile",
            {"user": "ü", "contextual": [1], "utc_offset_s": 0},
        ),
        ("reload", ("other",), "POST", "/v1/models/reload", {"model": "b", "before": "a", "seconds": 0.5}),
        (
            "prefix",
            ("u",),
            "POST",
            "/v1/prefix",
            {
                "user": "u",
                "admission": "admitted",
                "reason": "",
                "tokens": 5,
                "cached": 0,
                "model": "a",
                "request_id": "r",
            },
        ),
    ],
)
def test_every_call_has_its_route(
    ask: Ask, method: str, arguments: tuple[object, ...], sent: str, path: str, answer: object
) -> None:
    answer = answer or {
        "user": "a/b",
        "events": 1,
        "tokens": 1,
        "cached": 0,
        "newest_s": None,
        "model": "ab",
    }
    script = Script([httpx.Response(200, json=answer)])
    found = ask(DOOR, method, *arguments, transport=script.transport)
    assert script.seen[0].method == sent
    assert script.seen[0].url.raw_path.decode() == path
    assert answer == {name: getattr(found, name) for name in answer}


def test_models_are_a_list(ask: Ask) -> None:
    script = Script([httpx.Response(200, json={"models": [MODEL]})])
    (model,) = ask(DOOR, "models", transport=script.transport)
    assert (model.cacheable, model.limits.candidates, model.config["family"]) == ("append", 9, "hstu")


def test_append_makes_a_new_key_for_every_call(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=APPENDED)])
    calls = [("append", ("u", [1, 2], [3, 4]), options) for options in ({}, {}, {"key": "k"}, {"key": None})]
    ask.each(DOOR, calls, script.transport)
    first, second, named, none = script.bodies()
    assert first["key"] != second["key"]
    assert len(first["key"]) == 32
    assert (named["key"], "key" in none) == ("k", False)


def test_headers(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=RANKING)])
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    door = Door("http://server", api_key="a-key-of-some-length")
    ask(door, "rank", "u", [1], request_id="mine", traceparent=trace, transport=script.transport)
    headers = script.seen[0].headers
    assert headers["x-request-id"] == "mine"
    assert headers["traceparent"] == trace
    assert headers["authorization"] == "Bearer a-key-of-some-length"
    assert headers["content-type"] == "application/json"
    assert "x-tenant" not in headers
    ask(DOOR, "rank", "u", [1], transport=script.transport)
    assert script.seen[1].headers["x-tenant"] == "shop"
    assert script.seen[1].headers["x-request-id"] not in ("", "mine")


@pytest.mark.parametrize("said", ["starting", "ready", "draining"])
def test_a_server_that_is_not_ready_answers_too(ask: Ask, said: str) -> None:
    script = Script([httpx.Response(200, json={"status": said})])
    health = ask(DOOR, "health", transport=script.transport)
    assert (health.status, health.ready) == (said, said == "ready")


@pytest.mark.parametrize(
    ("method", "arguments", "options", "field"),
    [
        ("rank", ("u", [2**63]), {}, "candidates"),
        ("rank", ("u", [1.5]), {}, "candidates"),
        ("rank", ("u", ["7"]), {}, "candidates"),
        ("rank", ("u", 7), {}, "candidates"),
        ("rank", ("u", [1]), {"query_time": [True]}, "query_time"),
        ("rank", ("u", [1]), {"deadline_ms": 0}, "deadline_ms"),
        ("rank", ("u", [1]), {"deadline_ms": float("nan")}, "deadline_ms"),
        ("prefix", ("u",), {"deadline_ms": float("inf")}, "deadline_ms"),
        ("append", ("u", [1], [-(2**63) - 1]), {}, "timestamps"),
        ("state", ("",), {}, "user"),
        ("state", ("x" * 257,), {}, "user"),
        ("delete", ("\ud800",), {}, "user"),
        ("status", (), {"traceparent": "a\r\nx-tenant: other"}, "traceparent"),
        ("status", (), {"request_id": "ü"}, "request_id"),
    ],
)
def test_what_cannot_be_sent_is_refused_here(
    ask: Ask, method: str, arguments: tuple[object, ...], options: dict[str, object], field: str
) -> None:
    script = Script([httpx.Response(200, json={})])
    with pytest.raises(RequestRejectedError) as caught:
        ask(DOOR, method, *arguments, transport=script.transport, **options)
    assert caught.value.field == field
    assert script.seen == []


def test_a_name_that_is_no_unicode_is_refused_before_it_is_sent(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=RANKING)])
    with pytest.raises(RequestRejectedError, match="cannot be sent"):
        ask(DOOR, "rank", "\ud800", [1], transport=script.transport)
    assert script.seen == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": "server:80"}, "url"),
        ({"url": "ftp://server"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://server:port"}, "url"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"connect_ms": -1}, "connect_ms"),
        ({"connections": 0}, "connections"),
        ({"answer_bytes": 0}, "answer_bytes"),
    ],
)
def test_a_door_is_checked(options: dict[str, object], field: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        Door(**{"url": "http://server", **options})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_bad_key_is_not_shown(ask: Ask) -> None:
    door = Door("http://server", api_key="secret\n")
    assert "secret" not in repr(door)
    with pytest.raises(RequestRejectedError) as caught:
        ask(door, "status")
    assert caught.value.field == "api_key"
    assert "secret" not in str(caught.value)


def test_the_client_loads_nothing_of_the_engine() -> None:
    names = "torch, numpy, starlette, aiohttp, relaygr.engine"
    code = f"import sys, relaygr.client; print([n for n in {names.split(', ')!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
