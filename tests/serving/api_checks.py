"""What clients rely on, checked over HTTP: the same for one server and for what stands before several."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
from serving_apps import error_of, events

Check = Callable[[httpx.Client], None]
_USER = "api-checks"


def laps(client: httpx.Client) -> None:
    """A signal, then the ranking that finds its prefix; both name the member, where there are several."""
    body = {"user": f"{_USER}-laps", "history": events(60)}
    signal = client.post("/v1/prefix", json=body)
    assert (signal.status_code, signal.json()["user"]) == (200, body["user"]), signal.text
    answer = client.post("/v1/rank", json={**body, "candidates": [5, 1, 9]})
    assert answer.status_code == 200, answer.text
    assert [len(row) for row in answer.json()["scores"]] == [2] * 3
    assert answer.headers.get("x-relay-owner") == signal.headers.get("x-relay-owner")
    again = client.post("/v1/rank", json={**body, "candidates": [5, 1, 9]}).json()
    assert (again["path"], again["scores"]) == ("hit", answer.json()["scores"])


def stored_users(client: httpx.Client) -> None:
    """Events with a key count once; a state, a profile and a deletion are of the same user."""
    user = f"{_USER}-stored/ä"
    path = "/v1/users/" + httpx.URL(path=f"/{user}").raw_path.decode()[1:].replace("/", "%2F")
    sent = {"user": user, **events(20), "key": "k1"}
    first, second = (client.post("/v1/events", json=sent) for _ in range(2))
    assert (first.status_code, first.json()["accepted"], second.json()["replayed"]) == (200, 20, True)
    assert client.get(f"{path}/state").json()["events"] == 20
    assert client.put(f"{path}/profile", json={"contextual": []}).status_code == 200
    assert client.post("/v1/rank", json={"user": user, "candidates": [1]}).json()["served_tokens"] == 20
    gone = client.delete(path)
    assert (gone.status_code, gone.json()["events"]) == (200, 20), gone.text
    assert client.get(f"{path}/state").json()["events"] == 0
    other = client.post("/v1/events", json={**sent, "key": "k2"}, headers={"idempotency-key": "k3"})
    error_of(other, 422, "request", "key")


def refusals(client: httpx.Client) -> None:
    """Each wrong request has its status, code and field."""
    error_of(client.post("/v1/rank", content=b"{"), 400, "json")
    error_of(client.post("/v1/rank", json={"user": "u"}), 422, "request")
    error_of(client.post("/v1/rank", json={"user": "", "candidates": [1]}), 422, "request", "user")
    error_of(client.post("/v1/prefix", json={"user": "u", "deadline_ms": -1}), 422, "request")
    error_of(client.get("/v1/rank"), 405, "method")
    error_of(client.get("/v1/nothing"), 404, "not_found")
    error_of(client.post("/v1/generate", json={"user": "u"}), 404, "no_generator")
    kind = client.post("/v1/rank", content=b"x", headers={"content-type": "text/plain"})
    error_of(kind, 415, "type")
    error_of(client.post("/v1/events", content=b" " * (8 * 1024 * 1024 + 1)), 413, "body_size")
    error_of(client.post("/v1/models/reload", json={"path": "/no/such/folder"}), 422, "model")
    late = client.post("/v1/rank", json={"user": "u", "candidates": [1], "deadline_ms": 1e12})
    error_of(late, 422, "request", "deadline_ms")


def inference(client: httpx.Client) -> None:
    """The inference protocol, also its errors."""
    inputs = [
        {"name": "user", "datatype": "BYTES", "shape": [1], "data": [f"{_USER}-v2"]},
        {"name": "candidates", "datatype": "INT64", "shape": [1, 2], "data": [7, 8]},
    ]
    answer = client.post("/v2/models/ranker/infer", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_name"] == "ranker"
    wrong = client.post("/v2/models/ranker/infer", json={"inputs": inputs[:1]})
    assert (wrong.status_code // 100, isinstance(wrong.json()["error"], str)) == (4, True)
    assert client.get("/v2/health/ready").status_code == 200
    assert client.get("/v2/models/ranker").json()["name"] == "ranker"


def pages(client: httpx.Client) -> None:
    """What people and Prometheus read."""
    assert client.get("/healthz").json() == {"status": "ready"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert "<html" in client.get("/").text
    assert client.get("/v1/status").json()["state"] == "ready"
    assert client.get("/openapi.json").json()["openapi"].startswith("3.")
    assert len(client.get("/v1/models").json()["models"]) == 1
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "relaygr_http_requests_total{" in metrics.text


def request_ids(client: httpx.Client) -> None:
    """The client's id comes back, once; without one, there is a new one."""
    given = client.post("/v1/rank", json={"user": "u", "candidates": [1]}, headers={"x-request-id": "mine"})
    assert given.headers.get_list("x-request-id") == ["mine"]
    assert given.json()["request_id"] == "mine"
    made = client.post("/v1/rank", json={"user": "u", "candidates": [1]})
    assert made.headers.get_list("x-request-id") == [made.json()["request_id"]]


CHECKS: tuple[Check, ...] = (laps, stored_users, refusals, inference, pages, request_ids)


def answers_soon(url: str, timeout_s: float = 60.0) -> None:
    """Until it ranks."""
    end, body = time.monotonic() + timeout_s, {"user": _USER, "candidates": [1]}
    while True:
        answer: Any = httpx.post(f"{url}/v1/rank", json=body, timeout=30)
        if answer.status_code == 200:
            return
        assert time.monotonic() < end, answer.text
        time.sleep(0.1)
