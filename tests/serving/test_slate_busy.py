"""While the only thread of the list layer is busy, whoever waits for it is answered by its deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving_apps import App, error_of, events, running
from slate_apps import slated

from relaygr.engine.slate.maker import Made


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(slated(tmp_path_factory.mktemp("busy"), budget_ms=50.0)) as app:
        app.post("/v1/events", {"user": "ann", **events(30, 1)})
        app.post("/v1/slate", asked())
        yield app


def asked(**more: Any) -> dict[str, Any]:
    return {"user": "ann", "candidates": list(range(1, 51)), "explain": False, **more}


@pytest.fixture
def made(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Whose lists were begun; the thread is held by one until the test ends."""
    maker = app.service.slates.maker  # type: ignore[union-attr]
    make, free, begun, held = maker.make, threading.Event(), list[str](), threading.Event()

    def slow(order: Any, ranked: Any, budget_ms: float | None) -> Made:
        begun.append(order.ask.request_id)
        if order.ask.request_id == "seed 1":
            held.set()
            assert free.wait(30)
        return make(order, ranked, budget_ms)

    monkeypatch.setattr(maker, "make", slow)
    other = threading.Thread(target=app.call, args=("POST", "/v1/slate", asked(seed=1, deadline_ms=200)))
    other.start()
    assert held.wait(30)
    try:
        yield begun
    finally:
        free.set()
        other.join(30)
    assert app.call("POST", "/v1/slate", asked(seed=9)).status_code == 200
    assert begun == ["seed 1", "seed 9"]


@pytest.mark.parametrize("mode", ["on", "off"])
def test_who_waits_gets_504_by_its_deadline_and_is_never_begun(app: App, made: list[str], mode: str) -> None:
    began = time.monotonic()
    error_of(app.call("POST", "/v1/slate", asked(seed=2, deadline_ms=300, mode=mode)), 504, "deadline")
    assert time.monotonic() - began < 5
