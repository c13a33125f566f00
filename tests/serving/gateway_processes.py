"""A gateway, stub instances and real ones as processes of their own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

_MAIN = "from relaygr.cli.main import main; main()"
HOST = "http://127.0.0.1"
_HERE = Path(__file__).parent
ENGINE = ("engine.device_bytes=8MiB", "engine.dtype=fp32", "engine.kernel=reference", "engine.threads=1")


@dataclass(slots=True)
class Child:
    """A process that printed where it listens."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@dataclass(slots=True)
class Family:
    """Children, killed at the end."""

    folder: Path
    children: list[Child] = field(default_factory=list)

    def stub(self, name: str, port: int = 0) -> Child:
        return self._start([str(_HERE / "stub_instance.py"), name, str(port)], name)

    def serve(self, name: str, port: int = 0, *sets: str, config: Path | None = None) -> Child:
        """A real instance of the smallest preset; not ready yet."""
        settings = (*ENGINE, "serving.calibrate_s=0", "store.url=sqlite://memory", *sets)
        chosen = [] if config is None else ["--config", str(config)]
        return self._start(["-c", _MAIN, "serve", "--port", str(port), *chosen, *_options(settings)], name)

    def gateway(self, instances: dict[str, Child], *sets: str) -> Child:
        members = [part for name, one in instances.items() for part in ("--member", f"{name}={one.url}")]
        return self._start(["-c", _MAIN, "gateway", "--port", "0", *members, *_options(sets)], "gateway")

    def _start(self, arguments: list[str], name: str) -> Child:
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline()
        port = re.search(r"(\d+)\s*$", said)
        assert port, (self.folder / f"{name}.log").read_text()
        self.children.append(Child(process, f"{HOST}:{port[1]}"))
        return self.children[-1]


def _options(sets: tuple[str, ...]) -> list[str]:
    return [part for one in sets for part in ("--set", one)]


@contextlib.contextmanager
def family(folder: Path) -> Iterator[Family]:
    found = Family(folder)
    try:
        yield found
    finally:
        for child in found.children:
            if child.process.poll() is None:
                child.process.kill()
            child.process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def until(done: Callable[[], bool], timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def states(gateway: str) -> dict[str, str]:
    """The members' states as the gateway sees them."""
    shown: dict[str, Any] = httpx.get(f"{gateway}/v1/members", timeout=5).json()
    return {one["id"]: one["state"] for one in shown["members"]}
