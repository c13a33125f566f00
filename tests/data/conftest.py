"""Places for history stores; Redis is a real server, started here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from store_backends import Backend


def _backend(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Backend:
    if name == "redis":
        return Backend(name, request.getfixturevalue("empty_redis"))
    if name == "memory":
        return Backend(name, "sqlite://memory")
    return Backend(name, f"{name}:///{tmp_path / 'store'}")


@pytest.fixture(params=["sqlite", "memory", "lmdb", "redis"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Every back-end, empty."""
    with closing(_backend(request.param, tmp_path, request)) as chosen:
        yield chosen


@pytest.fixture(params=["sqlite", "lmdb", "redis"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Every back-end that outlives its process, empty."""
    with closing(_backend(request.param, tmp_path, request)) as chosen:
        yield chosen
