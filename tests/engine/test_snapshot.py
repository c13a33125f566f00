"""Host memory from one process to the next: all of it, right, or nothing."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any

import msgspec
import pytest
from relay_rig import FULL, PAGE_BYTES, Rig, rig, user

from relaygr.cache.interface import HostStats
from relaygr.engine.requests import Path
from relaygr.memory.snapshot import MAGIC, SnapshotHeader

USERS = ("one", "two", "three")


@contextlib.contextmanager
def kept_rig(path: FilePath, model: int = 0, **host: Any) -> Iterator[Rig]:
    """Its snapshot is read at the start, and written at the end."""
    settings = {"host_bytes": 4 << 20, "clean_target": 0.4, "snapshot_path": str(path)}
    with rig(host={**settings, **host}) as r:
        if model:
            r.swap(model)
        r.engine.below.attach()
        yield r
        r.rest()
        r.advance(1.0)
        r.rest()
        r.engine.below.detach(keep=True)


def host_stats(r: Rig) -> HostStats:
    found = r.engine.cache_stats().host
    assert found is not None
    return found


@pytest.fixture(name="written")
def _written(tmp_path: FilePath) -> FilePath:
    """The snapshot of a process that ranked some users."""
    path = tmp_path / "host.snapshot"
    with kept_rig(path) as r:
        for name in USERS:
            r.rank(user(name))
    assert path.exists()
    assert not path.with_name("host.snapshot.new").exists()
    return path


def is_empty(path: FilePath, caplog: pytest.LogCaptureFixture, model: int = 0, **host: Any) -> str:
    """A process over this file begins with nothing, says so once, and ranks all the same."""
    caplog.clear()
    mine = path.read_bytes().startswith(MAGIC)
    with caplog.at_level(logging.WARNING), kept_rig(path, model, **host) as r:
        assert (host_stats(r).restored, host_stats(r).restore_rejected) == (0, 1)
        assert host_stats(r).entries == 0
        assert host_stats(r).free_chunks == host_stats(r).total_chunks
        assert path.exists() is not mine, (
            "what was rejected is not kept for later; what is no snapshot is not ours"
        )
        assert r.rank(user("one")).served.path is Path.FULL
    lines = [one.message for one in caplog.records if "is not used" in one.message]
    assert len(lines) == 1
    return lines[0]


def test_what_was_in_host_and_device_is_in_the_host_of_the_next_process(written: FilePath) -> None:
    with kept_rig(written) as r:
        assert [r.cached(user(name)) for name in USERS] == [(0, FULL)] * 3
        assert (host_stats(r).restored, host_stats(r).restore_rejected) == (3, 0)
        assert not written.exists(), "it is used up"
        for name in USERS:
            answer = r.rank(user(name))  # which compares with a pass without any cache
            assert (answer.served.path, answer.served.tokens_loaded) == (Path.HIT, FULL)
    assert written.exists()


def test_restored_states_leave_first(written: FilePath) -> None:
    with kept_rig(written, host_bytes=21 * PAGE_BYTES, clean_target=0.9) as r:
        assert host_stats(r).restored == 3
        for number in range(3):
            r.rank(user(f"new-{number}"))
        r.rest()
        gone = [name for name in USERS if r.cached(user(name)) == (0, 0)]
        assert gone
        assert all(max(r.cached(user(f"new-{number}"))) == FULL for number in range(3))


def test_with_less_memory_the_last_ones_stay(written: FilePath) -> None:
    with kept_rig(written, host_bytes=11 * PAGE_BYTES) as r:
        there = [r.cached(user(name))[1] for name in USERS]
        assert sorted(there) == [0, FULL, FULL]
        assert host_stats(r).restored == 2
        for name in USERS:
            r.rank(user(name))


def test_who_is_forgotten_after_the_restart_does_not_come_back(written: FilePath) -> None:
    with kept_rig(written) as r:
        assert r.scheduler.forget("default", "one") == 1
        # A process that dies here leaves no snapshot at all.
        assert not list(written.parent.iterdir())
    with kept_rig(written) as r:
        assert [r.cached(user(name))[1] for name in USERS] == [0, FULL, FULL]


def altered(path: FilePath, change: Callable[[dict[str, Any]], None]) -> None:
    """The same file with another header, its checksum right."""
    data = path.read_bytes()
    at = len(MAGIC)
    length = int.from_bytes(data[at : at + 4], "little")
    fields = msgspec.msgpack.decode(data[at + 8 : at + 8 + length])
    change(fields)
    header = msgspec.msgpack.encode(fields)
    sizes = len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    path.write_bytes(data[:at] + sizes + header + data[at + 8 + length :])


CHANGES: dict[str, Any] = {
    "version": 2,
    "model_fp": bytes(15) + b"\1",
    "schema": 2,
    "layout_id": "kv1-other",
    "dtype": "bfloat16",
    "scales": "token_head",
    "page_tokens": 16,
    "chunk_tokens": 64,
    "shapes": [[4, 32, 32], [4, 32, 16]],
    "entries": 2,
}


def test_every_field_of_the_header_is_altered_below() -> None:
    assert set(CHANGES) == set(SnapshotHeader.__struct_fields__)


@pytest.mark.parametrize("field", CHANGES)
def test_m34_each_header_field_altered_leaves_the_cache_empty(
    field: str, written: FilePath, caplog: pytest.LogCaptureFixture
) -> None:
    def change(fields: dict[str, Any]) -> None:
        assert fields[field] != CHANGES[field]
        fields[field] = CHANGES[field]

    altered(written, change)
    line = is_empty(written, caplog)
    assert field in line or field == "entries"


@pytest.mark.parametrize("entries", [0, 4])
def test_m34_another_number_of_states(
    entries: int, written: FilePath, caplog: pytest.LogCaptureFixture
) -> None:
    altered(written, lambda fields: fields.update(entries=entries))
    is_empty(written, caplog)


def test_m34_a_field_too_few(written: FilePath, caplog: pytest.LogCaptureFixture) -> None:
    altered(written, lambda fields: fields.pop("scales"))
    assert "another version" in is_empty(written, caplog)


def test_m34_really_of_another_model_or_chunk(written: FilePath, caplog: pytest.LogCaptureFixture) -> None:
    data = written.read_bytes()
    assert "model_fp" in is_empty(written, caplog, model=1)
    written.write_bytes(data)
    assert "chunk_tokens" in is_empty(written, caplog, run_chunk_tokens=64)


def test_m34_truncated_anywhere(written: FilePath, caplog: pytest.LogCaptureFixture) -> None:
    data = written.read_bytes()
    for size in (0, 3, len(MAGIC), 20, 200, len(data) // 2, len(data) - 4, len(data) - 1):
        written.write_bytes(data[:size])
        is_empty(written, caplog)
    written.write_bytes(data + b"\0")
    assert "more states" in is_empty(written, caplog)


def test_m34_a_bit_of_any_part_is_another(written: FilePath, caplog: pytest.LogCaptureFixture) -> None:
    data = written.read_bytes()
    places = [0, 9, 13, 40, 320, 400, 800, len(data) // 2, len(data) - 2]
    for place in places:
        written.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        is_empty(written, caplog)


def test_a_file_that_cannot_be_written_is_no_error(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "host.snapshot"

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with caplog.at_level(logging.WARNING), kept_rig(path) as r:
        r.rank(user("one"))
        monkeypatch.setattr(os, "fsync", refuse)
    assert "no snapshot of host memory" in caplog.text
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_removed_is_not_used(
    written: FilePath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would come back with users who are forgotten from now on."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    with (
        caplog.at_level(logging.WARNING),
        rig(host={"host_bytes": 4 << 20, "snapshot_path": str(written)}) as r,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(FilePath, "unlink", refuse)
            r.engine.below.attach()
        assert (host_stats(r).restored, host_stats(r).restore_rejected) == (0, 1)
        assert written.exists()


def test_a_reload_of_the_model_begins_with_nothing(written: FilePath) -> None:
    with rig(host={"host_bytes": 4 << 20, "snapshot_path": str(written)}) as r:
        r.engine.below.attach(fresh=True)
        assert host_stats(r).entries == 0
        assert not written.exists()


def test_the_order_of_leaving_is_kept(written: FilePath) -> None:
    """First come, first in the file, first to leave."""
    with kept_rig(written) as r:
        host = r.engine._tiers.books.host
        assert host is not None
        first = [entry.ref.user for entry in host.entries()]
    with kept_rig(written) as r:
        host = r.engine._tiers.books.host
        assert host is not None
        assert [entry.ref.user for entry in host.entries()] == first
