"""`relaygr serve` as a process: it ends in order, loses nothing, and says what is wrong with its settings."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from serving_apps import error_of, server

from relaygr.cli.main import main
from relaygr.data.stores import open_store


def test_sigterm_finishes_what_was_accepted(model_folder: Path, tmp_path: Path) -> None:
    """Not ready at once, serving for the delay, then refusing; what waits is answered; exit status 0."""
    sets = ("serving.drain_delay_s=1.0", "serving.drain_s=10", "scheduler.rank_batch_wait_ms=900")
    body = {"user": "u", "candidates": [1, 2, 3]}
    with server(tmp_path, model_folder, *sets) as live, live.client() as client:
        assert client.post("/v1/rank", json=body).status_code == 200
        answers: list[httpx.Response] = []
        threads = [
            threading.Thread(target=lambda: answers.append(httpx.post(f"{live.url}/v1/rank", json=body)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        while client.get("/v1/status").json()["queue"]["in_progress"] < 3:
            assert not answers
        started = time.monotonic()
        live.process.send_signal(signal.SIGTERM)
        while (ready := client.get("/readyz")).status_code == 200:
            assert time.monotonic() < started + 1
        error_of(ready, 503, "not_ready")
        assert client.get("/healthz").json() == {"status": "draining"}
        assert ready.headers["connection"] == "close"
        assert client.post("/v1/rank", json=body).status_code == 200
        refused = _until_refused(live.url, body)
        if refused is not None:
            assert int(refused.headers["retry-after"]) >= 1
        for thread in threads:
            thread.join(30)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert live.process.wait(30) == 0
        assert "stopped" in live.log.read_text()


def _until_refused(url: str, body: dict[str, Any]) -> httpx.Response | None:
    """The first answer that refuses work; None if the server was gone before one came."""
    while True:
        try:
            answer = httpx.post(f"{url}/v1/rank", json=body, timeout=30)
        except httpx.TransportError:
            return None
        if answer.status_code != 200:
            error_of(answer, 503, "not_ready")
            return answer


def test_kill_9_loses_no_acknowledged_event(model_folder: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'events.db'}"
    acknowledged = dict.fromkeys(("a", "b", "c"), 0)

    def append(url: str, user: str) -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            while True:
                number = acknowledged[user]
                body = {"user": user, "items": [number], "timestamps": [number], "key": f"k{number}"}
                try:
                    answer = client.post("/v1/events", json=body)
                except httpx.TransportError:
                    return
                assert answer.json()["sequence"] == number + 1
                acknowledged[user] = number + 1

    with server(tmp_path, model_folder, store=store) as live:
        threads = [threading.Thread(target=append, args=(live.url, user)) for user in acknowledged]
        for thread in threads:
            thread.start()
        while min(acknowledged.values()) < 25:
            time.sleep(0.005)
        assert live.end(signal.SIGKILL) == -signal.SIGKILL
        for thread in threads:
            thread.join(30)
    reopened = open_store(store)
    for user, count in acknowledged.items():
        held = reopened.load("default", user, 1 << 20)
        # One more may have been stored whose answer did not arrive.
        assert held.total in (count, count + 1)
        assert held.items.tolist() == list(range(held.total))
    reopened.close()


@pytest.fixture
def logs_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("logs_restored")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "missing"), "missing/config.json: cannot be read"),
        (("--port", "70000"), "serving.port: 70000 must be in [0, 65535]"),
        (("--config", "missing.toml"), "config: cannot read missing.toml"),
        (("--set", "serving.prot=1"), "did you mean 'serving.port'"),
        (("--set", "store.url=oracle://x"), "store.url: oracle://... is none of"),
        (("--set", "store.keep_events=100"), "store.keep_events: 100 is less than the 4096 that are read"),
        (("--set", "serving.host=999.1.1.1"), "serving.host: cannot listen on 999.1.1.1"),
        (("--set", "serving.preset=hstu-tinny"), "preset: 'hstu-tinny' is unknown"),
    ],
)
def test_wrong_settings_end_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    more = (
        "--set",
        "serving.calibrate_s=0",
        "--set",
        "engine.kernel=reference",
        "--set",
        "engine.dtype=fp32",
    )
    memory = () if any("store" in one for one in arguments) else ("--set", "store.url=sqlite://memory")
    port = () if "--port" in arguments else ("--port", "0")
    with pytest.raises(SystemExit) as ended:
        main(["serve", *port, *more, *memory, *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("logs_restored")
def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        main(["serve", "--port", str(taken.getsockname()[1])])
    assert ended.value.code == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err
