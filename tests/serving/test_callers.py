"""Keys, tenants and how many requests may be in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving_apps import App, error_of, running, settings
from starlette.datastructures import Headers

from relaygr.config.load import load_config
from relaygr.config.settings import ApiKey
from relaygr.core.errors import ConfigError, OverloadError
from relaygr.serving.admit import Admissions
from relaygr.serving.auth import Caller, Gatekeeper
from relaygr.serving.errors import HttpError, TenantBusyError

KEYS = (
    ApiKey(key="secret-of-red-0001", tenant="red"),
    ApiKey(key="secret-of-blue-0002", tenant="blue", admin=True),
)


@pytest.fixture(scope="module")
def locked(model_folder: Path) -> Iterator[App]:
    with running(settings(model_folder, keys=KEYS)) as found:
        yield found


def bearer(key: ApiKey) -> dict[str, str]:
    return {"authorization": f"Bearer {key.key}"}


RED, BLUE = map(bearer, KEYS)
BODY = {"user": "u", "candidates": [1]}


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "key_missing"),
        ({"authorization": "Bearer "}, 401, "key_missing"),
        ({"authorization": "Basic secret-of-red-0001"}, 401, "key_missing"),
        ({"authorization": "Bearer secret-of-red-0002"}, 401, "key_unknown"),
        ({"authorization": "Bearer secret-of-red-000"}, 401, "key_unknown"),
        ({"x-api-key": "secret-of-red-0001\xff"}, 401, "key_unknown"),
        ({**RED, "x-tenant": "blue"}, 403, "tenant"),
    ],
)
def test_who_is_refused(locked: App, headers: dict[str, str], status: int, code: str) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = locked.call("POST", "/v1/rank", BODY, headers=raw)
    error_of(answer, status, code)
    assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)


@pytest.mark.parametrize("headers", [RED, {"x-api-key": KEYS[0].key}, {**RED, "x-tenant": "red"}])
def test_who_is_let_in(locked: App, headers: dict[str, str]) -> None:
    assert locked.call("POST", "/v1/rank", BODY, headers=headers).status_code == 200


def test_only_admins_reload(locked: App) -> None:
    error_of(locked.call("POST", "/v1/models/reload", headers=RED), 403, "admin")
    assert locked.call("POST", "/v1/models/reload", headers=BLUE).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/status", "/v2", "/v2/health/ready"],
)
def test_what_needs_no_key(locked: App, path: str) -> None:
    assert locked.call("GET", path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/users/u/state", "/v2/models/ranker"])
def test_what_needs_one(locked: App, path: str) -> None:
    assert locked.call("GET", path).status_code == 401


def test_tenants_do_not_see_one_another(locked: App) -> None:
    body = {"user": "same", "items": [1, 2, 3], "timestamps": [1, 2, 3], "key": "k"}
    for headers in (RED, BLUE):
        assert locked.call("POST", "/v1/events", body, headers=headers).json()["sequence"] == 3
        answer = locked.call("POST", "/v1/rank", {"user": "same", "candidates": [1]}, headers=headers).json()
        assert (answer["path"], answer["tokens_cached"]) == ("full", 0)
    assert locked.call("DELETE", "/v1/users/same", headers=RED).json()["events"] == 3
    left = locked.call("GET", "/v1/users/same/state", headers=BLUE).json()
    assert (left["events"], left["cached"]) == (3, 3)


def test_without_keys_the_header_names_the_tenant(app: App) -> None:
    body = {"user": "shared", "items": [1], "timestamps": [1]}
    app.post("/v1/events", body, headers={"x-tenant": "one"})
    assert app.call("GET", "/v1/users/shared/state").json()["events"] == 0
    state = app.call("GET", "/v1/users/shared/state", headers={"x-tenant": "one"})
    assert state.json()["events"] == 1
    for wrong in ("", "x" * 257):
        answer = app.call("GET", "/v1/users/shared/state", headers={"x-tenant": wrong})
        error_of(answer, 422, "request", "x-tenant")


def test_keys_come_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "relaygr.toml"
    file.write_text('[[serving.keys]]\nkey = "0123456789abcdef"\ntenant = "t"\nadmin = true\n')
    keys = load_config(file).serving.keys
    assert Gatekeeper(keys).caller(Headers({"x-api-key": "0123456789abcdef"})) == Caller("t", True)


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ((ApiKey(key="short"),), "serving.keys[0].key"),
        ((KEYS[0], ApiKey(key=KEYS[0].key, tenant="other")), "serving.keys[1].key"),
        ((ApiKey(key="long-enough-key-1", tenant=""),), "serving.keys[0]"),
    ],
)
def test_wrong_keys_are_refused_and_not_shown(keys: tuple[ApiKey, ...], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Gatekeeper(keys)
    assert caught.value.path == path
    assert keys[-1].key not in str(caught.value)


def test_admissions() -> None:
    async def run() -> None:
        admissions = Admissions(3, 2)
        with admissions.enter("a"), admissions.enter("a"):
            with pytest.raises(TenantBusyError, match="tenant 'a' has 2 requests in progress"):
                admissions.enter("a")
            with admissions.enter("b"), pytest.raises(OverloadError, match="3 requests are in progress"):
                admissions.enter("c")
            assert not await admissions.idle(0.01)
            assert admissions.in_progress == 2
        assert admissions.in_progress == 0
        assert not admissions._tenants
        assert await admissions.idle(0.01)

    asyncio.run(run())


def test_a_tenant_over_its_limit_waits_and_others_do_not(model_folder: Path) -> None:
    with running(settings(model_folder, tenant_requests_max=1, requests_max=2)) as app:
        app.service.engine._lock.acquire()
        held = [_background(app, {"x-tenant": name}) for name in ("a", "b")]
        try:
            while app.service.admissions.in_progress < 2:
                pass
            busy = app.call("POST", "/v1/rank", BODY, headers={"x-tenant": "c"})
            assert error_of(busy, 503, "overload")["retry_after_ms"] > 0
            assert int(busy.headers["retry-after"]) >= 1
            assert app.call("GET", "/healthz").status_code == 200
        finally:
            app.service.engine._lock.release()
        assert [one.result(30).status_code for one in held] == [200, 200]
        app.service.engine._lock.acquire()
        held = [_background(app, {"x-tenant": "a"})]
        try:
            while app.service.admissions.in_progress < 1:
                pass
            error = error_of(
                app.call("POST", "/v1/rank", BODY, headers={"x-tenant": "a"}), 429, "tenant_busy"
            )
            assert error["limit"] == 1
        finally:
            app.service.engine._lock.release()
        assert held[0].result(30).status_code == 200


def _background(app: App, headers: dict[str, str]) -> Any:
    work = app.client.post("/v1/rank", json=BODY, headers=headers)
    return asyncio.run_coroutine_threadsafe(work, app._loop)


def test_an_unknown_key_costs_what_a_known_one_does() -> None:
    """Every key is compared, whatever matches; seen from the comparisons, not from a clock."""
    import hmac

    gate, compared = Gatekeeper(KEYS), []
    original = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append(len(a))
        return original(a, b)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relaygr.serving.auth.hmac.compare_digest", counting)
        gate.caller(Headers({"x-api-key": KEYS[0].key}))
        with pytest.raises(HttpError):
            gate.caller(Headers({"x-api-key": "x"}))
    assert compared == [32] * 4
