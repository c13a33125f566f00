"""One service writes to an SQLite file; a second one is told so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaygr.core.errors import BackendError, ConfigError
from relaygr.data.stores import EventBatch, open_store

ONE = np.array([1], np.int64)
BATCH = EventBatch(ONE, ONE + 1_700_000_000, ONE)


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    first = open_store(url)
    with pytest.raises(ConfigError, match="in use by another process"):
        open_store(url)
    first.append("t", "u", BATCH)
    first.close()
    second = open_store(url)
    assert second.load("t", "u", 10).total == 1
    second.close()


def test_a_failed_start_leaves_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "h.db"
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises((ConfigError, BackendError)):
        open_store(f"sqlite:///{file}")
    file.unlink()
    open_store(f"sqlite:///{file}").close()


def test_a_removed_file_acknowledges_nothing(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/h.db")
    store.append("t", "u", BATCH)
    (tmp_path / "h.db").rename(tmp_path / "other.db")
    with pytest.raises(BackendError, match="removed or replaced"):
        store.append("t", "u", BATCH)
    store.close()
