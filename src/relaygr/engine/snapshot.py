"""What outlives a stop of the service: everything of host memory in one file."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from relaygr.cache.host import HostBooks, HostEntry
from relaygr.cache.runs import Run
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Fingerprint
from relaygr.engine.history import FEATURE_SCHEMA
from relaygr.memory.disk import sync_folder
from relaygr.memory.disk_record import Meta
from relaygr.memory.host import HostPool
from relaygr.memory.snapshot import (
    BadSnapshotError,
    SnapshotHeader,
    SnapshotReader,
    State,
    is_snapshot,
    pages,
    unfinished,
    write_snapshot,
)

log = logging.getLogger("relaygr.engine")


def save(path: Path, books: TieredBooks, pool: HostPool, model_fp: Fingerprint) -> int:
    """Write all host entries, those that came first in front; returns how many, 0 if it cannot be done."""
    host = books.host
    assert host is not None, "a snapshot is of a host tier"
    began_s = time.perf_counter()
    entries = list(host.entries())
    states = (
        State(Meta(one.ref, one.layout_id, one.sums), host.host_runs(one.runs, one.tokens)) for one in entries
    )
    try:
        size = write_snapshot(path, _header(pool, host, model_fp, len(entries)), states, pool)
    except OSError as error:
        log.warning("no snapshot of host memory: %s", error)
        return 0
    log.info("%d states, %d bytes in %s, %.1f s", len(entries), size, path, time.perf_counter() - began_s)
    return len(entries)


def remove(path: Path) -> None:
    """What an earlier process left there, finished or not; what is no snapshot stays. Raises: OSError."""
    unfinished(path).unlink(missing_ok=True)
    if is_snapshot(path):
        path.unlink()


def restore(path: Path, books: TieredBooks, pool: HostPool, model_fp: Fingerprint) -> int:
    """Fill host memory from a snapshot, which is used up by that; returns the entries.

    What does not fit in every respect leaves the cache empty, and is counted and logged once. The file is
    gone before anything of it is used: users who are forgotten later must not come back with it.
    """
    host = books.host
    assert host is not None, "a snapshot is for a host tier"
    kept: list[tuple[Meta, tuple[Run, ...]]] = []
    try:
        unfinished(path).unlink(missing_ok=True)
        if not is_snapshot(path):
            if path.exists():
                books.restore_rejected += 1
                log.warning("host memory is empty, %s is not used: it is no snapshot of this format", path)
            return 0
        with open(path, "rb") as file:
            path.unlink()
            sync_folder(path.parent)
            reader = SnapshotReader(file, _header(pool, host, model_fp, 0), pool)
            for meta, data in reader.states():
                _take(host, pool, kept, meta, data)
    except FileNotFoundError:
        return 0
    except (OSError, BadSnapshotError) as error:
        for _, runs in kept:
            host.give_back(runs)
        books.restore_rejected += 1
        log.warning("host memory is empty, %s is not used: %s", path, error)
        return 0
    for meta, runs in kept:
        host.put(HostEntry(meta.ref, runs, meta.layout_id, meta.sums))
    books.restored += len(kept)
    log.info("%d states from %s", len(kept), path)
    return len(kept)


def _take(
    host: HostBooks, pool: HostPool, kept: list[tuple[Meta, tuple[Run, ...]]], meta: Meta, data: bytearray
) -> None:
    """Copy a state to host memory; where there is less of that than before, the first ones leave again."""
    tokens = meta.ref.tokens
    if host.chunks_for(tokens) > host.total_chunks:
        return
    while (runs := host.reserve(tokens)) is None:
        if not kept:
            return
        host.give_back(kept.pop(0)[1])
    kept.append((meta, runs))
    view, at = memoryview(data), 0
    for row, rows in pages(host.host_runs(runs, tokens), pool.layout.page_tokens):
        size = pool.raw_bytes(rows)
        pool.put_raw(row, rows, view[at : at + size])
        at += size


def _header(pool: HostPool, host: HostBooks, model_fp: Fingerprint, entries: int) -> SnapshotHeader:
    layout, (dtype, scales) = pool.layout, pool.form
    return SnapshotHeader(
        model_fp=model_fp,
        schema=FEATURE_SCHEMA,
        layout_id=host.layout_id,
        dtype=dtype,
        scales=scales,
        page_tokens=layout.page_tokens,
        chunk_tokens=host.chunk_tokens,
        shapes=[(layout.heads, layout.qk_dim, layout.v_dim)] * layout.layers,
        entries=entries,
    )
