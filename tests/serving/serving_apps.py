"""Small models on disk, an application in this process, and a server in one of its own."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import torch
from msgspec.structs import replace

from relaygr.config.settings import Config, EngineConfig, ServingConfig, StoreConfig
from relaygr.core.units import MIB
from relaygr.engine import Engine
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker
from relaygr.models.weights import save_ranker
from relaygr.serving.app import build_app
from relaygr.serving.service import Service

Result = TypeVar("Result")

TINY = HstuConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    qk_dim=8,
    v_dim=8,
    max_seq_len=128,
    scaling_seqlen=32,
    position_buckets=128,
    item_rows=257,
    embedding_dim=8,
    action_bits=("engage", "like"),
    tasks=("engage", "like"),
)
SLOTTED = replace(TINY, contextual=("country", "city"))
ENGINE = EngineConfig(device_bytes=4 * MIB, dtype="fp32", kernel="reference", threads=1)
START_S = 1_700_000_000
_MAIN = "from relaygr.cli.main import main; main()"


def save_model(folder: Path, seed: int = 0, config: HstuConfig = TINY) -> str:
    """A ranker with random weights in `folder`; returns its fingerprint, hexadecimal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Ranker(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return save_ranker(model, folder).hex()


@functools.cache
def offline(folder: Path) -> Engine:
    """An engine of the tests' own for a model on disk, which is not to change."""
    return Engine.load(folder, ENGINE)


def settings(model: Path | None, store: str = "sqlite://memory", **serving: Any) -> Config:
    return Config(
        engine=ENGINE,
        store=StoreConfig(url=store),
        serving=ServingConfig(
            **{"model": str(model or ""), "calibrate_s": 0.0, "drain_s": 5.0, "port": 0} | serving
        ),
    )


def events(count: int, seed: int = 0) -> dict[str, Any]:
    """Columns of a user's events."""
    generator = np.random.default_rng(seed)
    times = START_S + np.cumsum(generator.integers(1, 900, count))
    return {
        "items": generator.integers(1, 1 << 40, count).tolist(),
        "timestamps": times.tolist(),
        "actions": generator.integers(0, 4, count).tolist(),
    }


class App:
    """A started service and its application on an event loop in a thread; answers come without a socket."""

    def __init__(self, config: Config) -> None:
        self.service = Service(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="app")
        self._thread.start()
        try:
            self.app = build_app(self.service)
            self.do(self.service.start())
        except BaseException:
            self._end()
            raise
        transport = httpx.ASGITransport(app=self.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run on the service's loop, and wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def call(self, method: str, path: str, json: Any = None, **more: Any) -> httpx.Response:
        if json is not None:
            more["json"] = json
        return self.do(self.client.request(method, path, **more))

    def post(self, path: str, json: Any = None, **more: Any) -> Any:
        """The answer of a POST that succeeds."""
        answer = self.call("POST", path, json, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def close(self) -> None:
        self.do(self.client.aclose())
        self.do(self.service.drain(5.0))
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def running(config: Config) -> Iterator[App]:
    app = App(config)
    try:
        yield app
    finally:
        app.close()


def error_of(answer: httpx.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    """The error of an answer that has the status, code and field it should have."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code, error
    if field is not None:
        assert error["field"] == field, error
    assert error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]
    return error


@dataclass(slots=True)
class Server:
    """`relaygr serve` in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        with self.client() as client:
            while time.monotonic() < end:
                assert self.process.poll() is None, self.log.read_text()
                if client.get("/readyz").status_code == 200:
                    return
                time.sleep(0.05)
        raise AssertionError(f"not ready: {self.log.read_text()}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def server(folder: Path, model: Path | None, *sets: str, store: str = "sqlite://memory") -> Iterator[Server]:
    """A server process, ready when it is entered, killed when it is left unless it has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "serve.log"
    named = [
        f"store.url={store}",
        "engine.device_bytes=4MiB",
        "engine.dtype=fp32",
        "engine.kernel=reference",
        "engine.threads=1",
        "serving.calibrate_s=0",
        *sets,
    ]
    options = [part for name in named for part in ("--set", name)]
    chosen = ["--model", str(model)] if model is not None else []
    command = [sys.executable, "-c", _MAIN, "serve", "--port", "0", *chosen, *options]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stream, text=True, cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, log.read_text()
        running = Server(process, found[0], log)
        running.wait_ready()
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def close_scores(got: Sequence[Sequence[float]], wanted: Any) -> None:
    """Scores agree as float32 through different batches do."""
    np.testing.assert_allclose(np.asarray(got, np.float32), wanted, rtol=0, atol=2e-5)
