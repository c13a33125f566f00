"""A store that is slow or gone: deadlines hold, answers say when to come again."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from serving_apps import error_of, events, running, settings

from relaygr.core.errors import OverloadError
from relaygr.data.stores.sqlite import SqliteStore


def test_the_deadline_covers_the_store(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    whole = SqliteStore.load

    def slow(self: SqliteStore, tenant: str, user: str, newest: int) -> object:
        go.wait(20)
        return whole(self, tenant, user, newest)

    with running(settings(model_folder)) as app:
        monkeypatch.setattr(SqliteStore, "load", slow)
        begun = time.monotonic()
        for path, body in (("/v1/rank", {"candidates": [1]}), ("/v1/prefix", {})):
            answer = app.call("POST", path, {"user": f"u{path[-1]}", "deadline_ms": 100, **body})
            error_of(answer, 504, "deadline")
        assert time.monotonic() - begun < 10
        go.set()
        assert app.call("POST", "/v1/rank", {"user": "uk", "candidates": [1]}).status_code == 200


def test_a_store_that_is_out_of_reach_says_when_to_come_again(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> object:
        raise OverloadError("the history store cannot be reached", 1000.0)

    with running(settings(model_folder)) as app:
        monkeypatch.setattr(SqliteStore, "append", gone)
        answer = app.call("POST", "/v1/events", {"user": "u", **events(2)})
        error_of(answer, 503, "overload")
        assert answer.headers["retry-after"] == "1"
