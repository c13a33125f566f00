"""`relaygr deploy ray --address local` ends at a signal with status 0, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from serving_apps import save_model

from relaygr.bench.serve_process import free_port

pytest.importorskip("ray", reason="Ray is not installed: pip install 'relaygr[ray]'")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(280)]
MAIN = "import sys; from relaygr.cli.main import main; main(sys.argv[1:])"
SETTINGS = ("store.url=sqlite://memory", "serving.calibrate_s=0", "engine.dtype=fp32", "engine.threads=1")
MORE = ("engine.device_bytes=64MiB", "budgets.t_life_ms=2000", "ray.ranker_cpus=0.1")


def left(mark: str) -> list[str]:
    """Processes that have inherited the mark."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100])
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_all(number: signal.Signals, tmp_path: Path) -> None:
    save_model(tmp_path / "model", 0)
    log, mark = tmp_path / "log", f"{uuid4()}"
    command = ["deploy", "ray", "--address", "local", "--dashboard-port", "0", "--replicas", "1"]
    command += ["--port", str(free_port()), "--model", str(tmp_path / "model")]
    for setting in (*SETTINGS, *MORE):
        command += ["--set", setting]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *command],
            stdout=out,
            stderr=out,
            env={**os.environ, "RELAYGR_TEST_MARK": mark},
        )
    try:
        end = time.monotonic() + 200
        while "listening on" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        assert len(left(mark)) > 3
        process.send_signal(number)
        assert process.wait(60) == 0, log.read_text()
        end = time.monotonic() + 10
        while left(mark) and time.monotonic() < end:
            time.sleep(0.2)
        assert left(mark) == []
    finally:
        process.kill()
        process.wait()
