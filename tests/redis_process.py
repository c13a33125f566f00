"""A Redis server of the tests' own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def find_redis_server() -> str | None:
    return shutil.which("redis-server")


@contextmanager
def redis_server(binary: str, folder: Path, port: int = 0) -> Iterator[str]:
    """Runs a server of our own on a free port of this machine; yields its URL."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        port = port or probe.getsockname()[1]
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "save": ""}
    command = [binary, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            _wait_until_up(port, server, folder)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(timeout=30)


def _wait_until_up(port: int, server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 30
    with closing(redis.Redis(port=port, retry=Retry(NoBackoff(), 0))) as client:
        while time.monotonic() < deadline and server.poll() is None:
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.02)
            else:
                return
    raise RuntimeError(f"redis-server did not start: {(folder / 'log').read_text(errors='replace')}")
