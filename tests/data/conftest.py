"""Places for history stores; Redis is a real server, started here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from store_backends import Backend, find_redis_server, redis_server


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = find_redis_server()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with redis_server(binary, tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def empty_redis(redis_url: str) -> str:
    with closing(redis.Redis.from_url(redis_url)) as client:
        client.flushall()
    return redis_url


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
