"""Threads of the tests, and where the shared data sets are for those that check published numbers."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

# Test processes run side by side, and an OpenMP loop waits for its slowest thread: two processes with a
# thread for each core take many times as long as with one thread each. Set before torch is imported; the
# environment of the caller wins, and tests of several threads ask for them; these sleep while they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_finish() -> None:
    """Collections that tests ask for, to see what was left behind, need not look at what was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    """What a module sets, the next one does not compute with."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Products are cut between two threads, as on a server with cores enough."""
    import torch  # not at the top: modules that need none should load without it

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def shared_data_folder() -> Path:
    """`$RELAYGR_SHARED`, or `../shared/data` beside the repository; it may not exist."""
    folder = os.environ.get("RELAYGR_SHARED")
    return Path(folder) if folder else Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Finds a file under the shared data folder, or skips the test and says why."""

    def find(name: str) -> Path:
        path = shared_data_folder() / name
        if not path.exists():
            pytest.skip(f"{path} is missing; set RELAYGR_SHARED to the folder of the shared data sets")
        return path

    return find


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from redis_process import find_redis_server, redis_server  # as above

    binary = find_redis_server()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with redis_server(binary, tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def empty_redis(redis_url: str) -> str:
    import redis  # as above

    with closing(redis.Redis.from_url(redis_url)) as client:
        client.flushall()
    return redis_url
