"""Envoy as a process of its own, with the configuration that `relaygr deploy envoy` makes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relaygr.bench.envoy_process import EnvoyProcess, envoy_path
from relaygr.config.load import load_config
from relaygr.config.relay import Member


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
        [envoy_path(), "--mode", "validate", "--config-path", file],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@contextlib.contextmanager
def envoy(folder: Path, urls: Mapping[str, str], budget_ms: float = 4000.0) -> Iterator[tuple[str, str]]:
    """The URLs of a running Envoy and of its own pages; it is ready."""
    with EnvoyProcess(folder, urls, budget_ms) as process:
        yield process.url, process.admin
