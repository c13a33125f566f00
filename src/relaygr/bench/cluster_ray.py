"""Replicas that Ray Serve keeps, on a cluster of this machine alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import httpx
import msgspec

from relaygr.bench.cluster_shape import FORGETFUL, Reload, Setup, Shape
from relaygr.bench.serve_process import HOST, ServerProcess, free_port, resident_bytes
from relaygr.core.errors import BackendError

_COMMAND = "import sys; from relaygr.cli.main import main; main(sys.argv[1:])"
_READY_S = 240.0
_SETTLE_S = 120.0


class _Replica(msgspec.Struct):
    state: str
    pid: int | None = None


class _Deployment(msgspec.Struct):
    replicas: list[_Replica]


class _Application(msgspec.Struct):
    deployments: dict[str, _Deployment]


class _Details(msgspec.Struct):
    applications: dict[str, _Application]


class RayShape(Shape):
    """`relaygr deploy ray` on a local cluster. Ray replaces a replica that is killed."""

    policy = "the ingress asks the user's next choice; Ray starts a replica in place of one that ended"
    replaces = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._dashboard, self._replicas = free_port(), setup.count
        self._model: Path | None = None
        self._own = (
            *setup.settings,
            "router.poll_s=0.2",
            "router.ramp_s=0",
            *FORGETFUL,
            "ray.ranker_cpus=0.1",
        )

    @classmethod
    def missing(cls) -> str:
        return "" if find_spec("ray") is not None else "Ray is missing: pip install 'relaygr[ray]'"

    def start(self) -> None:
        command = ["deploy", "ray", "--address", "local", "--dashboard-port", str(self._dashboard)]
        command += ["--replicas", str(self._replicas), "--wait-s", f"{_READY_S:g}"]
        process = ServerProcess(self.place("ray"), self._own, command=command, ready_s=_READY_S)
        self._front = self.enter(process)

    @property
    def dashboard(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self._dashboard}"

    @property
    def addresses(self) -> list[str]:
        return [self._front.url]

    @property
    def pids(self) -> list[int]:
        """Processes of the rankers that run."""
        answer = httpx.get(f"{self.dashboard}/api/serve/applications/", timeout=30)
        found = msgspec.json.decode(answer.content, type=_Details).applications["relaygr"]
        rankers = found.deployments["Ranker"].replicas
        return [one.pid for one in rankers if one.state == "RUNNING" and one.pid is not None]

    @property
    def replica_bytes(self) -> int | None:
        sizes = [resident_bytes(pid) for pid in self.pids]
        return max((size for size in sizes if size is not None), default=None)

    def kill(self) -> None:
        """End a replica without notice; returns when Ray has replaced it."""
        before = self.pids
        os.kill(before[0], signal.SIGKILL)
        self._await(lambda: len(now := self.pids) >= self._replicas and before[0] not in now)

    def add(self) -> None:
        self.scale(self._replicas + 1)

    def scale(self, count: int) -> None:
        """So many replicas from now on; returns when they run, and no others."""
        self._replicas = count
        self._deploy()
        self._await(lambda: len(self.pids) == count)

    async def update(self, model: Path, reload: Reload) -> None:
        await asyncio.to_thread(self.deploy, model)

    def deploy(self, model: Path) -> None:
        """Once more, with another model, which Ray hands on to the replicas."""
        self._model = model
        self._deploy()

    def _await(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _SETTLE_S
        while not done():
            if time.monotonic() > end:
                raise BackendError(f"{len(self.pids)} of {self._replicas} run after {_SETTLE_S:.0f} s")
            time.sleep(0.5)

    def _deploy(self) -> None:
        """Again, with what is different now."""
        command = ["deploy", "ray", "--address", self.dashboard]
        command += ["--port", str(self._front.port), "--replicas", str(self._replicas)]
        for setting in (f"serving.host={HOST}", *self._own):
            command += ["--set", setting]
        if self._model is not None:
            command += ["--set", f"serving.model={self._model}"]
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, *command], capture_output=True, text=True, timeout=_READY_S
        )
        if done.returncode:
            raise BackendError(f"relaygr deploy ray: {(done.stdout + done.stderr)[-2000:]}")
