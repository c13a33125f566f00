"""The examples run: all of them in this process against servers in it, and as a reader would run them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import runpy
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import uvicorn

from relaygr.config.load import load_config
from relaygr.config.stream import StreamConfig
from relaygr.data.streams import Entry, event_of
from relaygr.serving.app import build_app
from relaygr.serving.service import Service

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDS = {"ann_cascade": "faiss", "triton_client": "tritonclient.http"}
SAID = {
    "quickstart": ["stored 4 events", "prefix: admitted, 4 tokens", "served from 4 tokens", "5 events"],
    "cascade": ["user-0: prefix admitted", "user-0: prefix hit, path hit", "best: [", "lead "],
    "ann_cascade": ["trained", "lists of the index", "path hit, lead", "prefix not_sent, path full"],
    "generate_rank": ["2,000 items under", "301 of 310 prompt tokens were there", "ranked"],
    "triton_client": ["ready: True", "largest difference to /v1/rank: 0.0e+00"],
}
# Measuring what bf16 takes here would be most of a server's start.
QUICK = {"RELAYGR_ENGINE__DTYPE": "fp32", "RELAYGR_STORE__URL": "sqlite://memory"}


@contextlib.contextmanager
def running_server(*options: str) -> Iterator[str]:
    """As `running_server` of the examples: the settings that its options ask for, in a thread."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    assert {name for name, _ in pairs} <= {"--model", "--set"}
    models = [f"serving.model={value}" for name, value in pairs if name == "--model"]
    given = ["engine.device_bytes=64MiB", "serving.calibrate_s=0.1", *models]
    settings = load_config(None, QUICK, [*given, *(value for name, value in pairs if name == "--set")])
    listener = socket.create_server(("127.0.0.1", 0))
    service = Service(settings)
    server = uvicorn.Server(
        uvicorn.Config(build_app(service), ws="none", lifespan="off", log_config=None, access_log=False)
    )
    ready = threading.Event()

    async def run() -> None:
        await service.start()
        ready.set()
        await server.serve([listener])
        await service.drain(5.0)

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="example-server")
    thread.start()
    try:
        assert ready.wait(60), "the service did not start"
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        listener.close()


def needed(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")


@pytest.mark.parametrize("name", SAID)
def test_what_an_example_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed(name)
    stand_in = types.ModuleType("server")
    stand_in.running_server = running_server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "server", stand_in)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    for word in SAID[name]:
        assert word in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", [name if name == "quickstart" else pytest.param(name, marks=pytest.mark.slow) for name in SAID]
)
def test_an_example(name: str, tmp_path: Path) -> None:
    needed(name)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RELAYGR_ENGINE__DTYPE": "fp32"},
    )
    assert done.returncode == 0, done.stderr
    for word in SAID[name]:
        assert word in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_producer_of_events(empty_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["stream_events.py", empty_redis])
    runpy.run_path(str(EXAMPLES / "stream_events.py"), run_name="__main__")
    with contextlib.closing(redis.Redis.from_url(empty_redis)) as client:
        entries: Any = client.xrange(StreamConfig().streams[0])
    found = [event_of(Entry("s", 1, {name.decode(): one[name] for name in one})) for _, one in entries]
    assert [event.item for event in found] == [11, 7, 13]
