"""A server for an example: a free port, nothing left behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from relaygr.client import Client, UnavailableError

READY_S = 90.0
SERVE = "from relaygr.cli.main import main; main()"


@contextmanager
def running_server(*options: str) -> Iterator[str]:
    """Start `relaygr serve` with further options, hand out its URL, stop it.

    Without `--model FOLDER` it serves a small model with random weights.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SERVE, "serve", "--port", str(port)]
        command += ["--set", "engine.device_bytes=64MiB", "--set", "serving.calibrate_s=0.1", *options]
        with open(f"{folder}/server.log", "wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=60)


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + READY_S
    with Client(url) as client:
        while time.monotonic() < end and process.poll() is None:
            try:
                if client.health().ready:
                    return
            except UnavailableError:
                pass  # it does not listen yet
            time.sleep(0.1)
    raise SystemExit("the server did not get ready")
