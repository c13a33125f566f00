"""Processes that are killed while they append, and disks that fill up: what was acknowledged is there."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from store_backends import Backend, numbered
from store_child import THREADS

from relaygr.core.errors import BackendError
from relaygr.data.stores import HistoryStore

CHILD = Path(__file__).with_name("store_child.py")
KILLS = 4


def child(mode: str, synchronous: str, url: str, *numbers: int) -> list[str]:
    return [sys.executable, str(CHILD), mode, synchronous, url, *map(str, numbers)]


def filling(store: HistoryStore) -> Iterator[int]:
    """Appends without end; the user's sequence after each."""
    done = 0
    while True:
        done = store.append("t", "u", numbered(done, 500), dedupe=False).sequence
        yield done


def appended_until_killed(command: list[str], lines: int) -> Counter[str]:
    """The newest acknowledged sequence of each user, of a process killed after so many `lines`."""
    acknowledged: Counter[str] = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for _ in range(lines):
                line = process.stdout.readline()
                assert line.endswith("\n"), "the process ended by itself"
                user, sequence = line.split()
                acknowledged[user] = int(sequence)
        finally:
            process.kill()
        # What it had said before it died counts too; only a line cut short does not.
        for line in process.stdout:
            if line.endswith("\n"):
                user, sequence = line.split()
                acknowledged[user] = int(sequence)
    return acknowledged


@pytest.mark.parametrize("synchronous", ["normal", "full"])
def test_a_killed_process_loses_no_acknowledged_event(lasting: Backend, synchronous: str) -> None:
    totals = [0] * THREADS
    for kill in range(KILLS):
        acknowledged = appended_until_killed(child("ack", synchronous, lasting.url, *totals), 40 + 37 * kill)
        store = lasting.open(keep_events=1 << 20, synchronous=synchronous)
        for at in range(THREADS):
            history = store.load("t", f"u{at}", 1 << 20)
            assert history.total >= acknowledged[f"u{at}"]
            # Whole batches, each once, in order: at most one that was not acknowledged.
            assert history.items.tolist() == list(range(history.total))
            assert history.total - max(acknowledged[f"u{at}"], totals[at]) <= 7
            totals[at] = history.total
        assert store.count() == len([total for total in totals if total])
        lasting.close()
    assert sum(totals) > 100


@pytest.mark.parametrize("scheme", ["sqlite", "lmdb"])
@pytest.mark.parametrize("room_bytes", [200_000, 333_333, 1_000_000])
def test_a_full_disk_is_an_error_and_leaves_nothing_half_done(
    tmp_path: Path, scheme: str, room_bytes: int
) -> None:
    with closing(Backend(scheme, f"{scheme}:///{tmp_path / 'store'}")) as backend:
        command = child("full", "normal", backend.url, room_bytes)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        refused, held, after = done.stdout.splitlines()
        acknowledged, _, error = refused.partition(" ")
        assert str(backend.path) in error
        assert int(acknowledged) > 0
        assert held == acknowledged
        assert int(after) == int(acknowledged) + 500  # with room again, the same store goes on
        history = backend.open(keep_events=1 << 20).load("t", "u", 1 << 20)
        assert history.items.tolist() == list(range(int(after)))


def test_a_full_lmdb_map_is_an_error_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    with closing(Backend("lmdb", f"lmdb:///{tmp_path / 'store'}")) as backend:
        store = backend.open(map_bytes=1 << 20, keep_events=1 << 20)
        answers: list[int] = []
        with pytest.raises(BackendError, match=r"is full: store\.map_bytes is 1048576 bytes"):
            answers.extend(filling(store))
        done = answers[-1]
        assert store.load("t", "u", 1 << 20).items.tolist() == list(range(done))
        backend.close()
        store = backend.open(map_bytes=1 << 24, keep_events=1 << 20)
        assert store.append("t", "u", numbered(done, 500)).sequence == done + 500


def test_a_full_redis_is_an_error_and_leaves_nothing_half_done(empty_redis: str) -> None:
    backend = Backend("redis", empty_redis)
    with closing(backend), closing(redis.Redis.from_url(empty_redis)) as server:
        store = backend.open(keep_events=1 << 20)
        answers: list[int] = []
        try:
            server.config_set("maxmemory", server.info("memory")["used_memory"] + 2_000_000)
            with pytest.raises(BackendError, match="maxmemory"):
                answers.extend(filling(store))
            done = answers[-1]
            assert store.load("t", "u", 1 << 20).items.tolist() == list(range(done))
        finally:
            server.config_set("maxmemory", 0)
        assert store.append("t", "u", numbered(done, 500)).sequence == done + 500
