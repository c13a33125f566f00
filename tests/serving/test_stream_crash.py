"""Consumers that are killed at any moment: every event is stored, once, in the order of its user."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from stream_sinks import fields

from relaygr.config.settings import StoreConfig
from relaygr.data.stores import open_store

CHILD = Path(__file__).with_name("stream_child.py")
USERS, EVENTS = 5, 120
STREAMS = ("s0", "s1")


def consume(url: str, place: str, where: str, at: int) -> int:
    command = [sys.executable, str(CHILD), url, place, ",".join(STREAMS), where, str(at)]
    path = [str(CHILD.parent), *filter(None, sys.path)]
    return subprocess.run(command, timeout=60, env={"PYTHONPATH": ":".join(path)}, check=False).returncode


@pytest.mark.parametrize("where", ["append", "before"])
def test_a_killed_consumer_neither_loses_nor_doubles(tmp_path: Path, empty_redis: str, where: str) -> None:
    """After an append and in front of the acknowledgement is where doubles come from."""
    place = f"sqlite:///{tmp_path / 'store'}"
    with closing(redis.Redis.from_url(empty_redis)) as client:
        put: Any = client.xadd
        for number in range(EVENTS):
            user = number % USERS
            put(STREAMS[user % 2], fields(f"u{user}", number))
        for kill in (1, 4):
            assert consume(empty_redis, place, where, kill) == -signal.SIGKILL
        assert consume(empty_redis, place, "never", 0) == 0
        for stream in STREAMS:
            groups: Any = client.xinfo_groups(stream)
            assert [(group["pending"], group["lag"]) for group in groups] == [(0, 0)]
    with closing(open_store(place, StoreConfig())) as store:
        for user in range(USERS):
            assert store.load("default", f"u{user}", 1000).items.tolist() == list(range(user, EVENTS, USERS))
