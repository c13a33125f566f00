"""What a service keeps in files from one start to the next, and what it must not keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from relay_apps import CANDIDATES, HOST, LONG, SMALL, metric, relaying
from serving_apps import App, close_scores, offline, save_model

from relaygr.cache.interface import Stats
from relaygr.core.units import MIB
from relaygr.engine import RankRequest, UserHistory


@contextmanager
def kept(model: Path, folder: Path, disk: bool) -> Iterator[App]:
    host: dict[str, Any] = {**HOST, "snapshot_path": str(folder / "snapshot")}
    if disk:
        host |= {"disk_bytes": 64 * MIB, "disk_path": str(folder / "disk")}
    with relaying(
        model, speed=None, host=host, engine=SMALL, store={"url": f"sqlite:///{folder}/h.db"}
    ) as app:
        yield app


def rank(app: App, user: str) -> Any:
    return app.post("/v1/rank", {"user": user, "candidates": CANDIDATES})


def learn(app: App, user: str) -> None:
    app.post("/v1/events", {"user": user, **LONG})


def stats(app: App) -> Stats:
    return app.service.engine.cache_stats()


@pytest.mark.parametrize("disk", [False, True])
def test_a_restart_begins_with_what_there_was(model_folder: Path, tmp_path: Path, disk: bool) -> None:
    wanted = offline(model_folder).rank(RankRequest(UserHistory("u", *LONG.values()), CANDIDATES)).logits
    with kept(model_folder, tmp_path, disk) as app:
        for user in ("u", "gone"):
            learn(app, user)
            close_scores(rank(app, user)["scores"], wanted)
        assert app.call("DELETE", "/v1/users/gone").status_code == 200
        assert (stats(app).disk is not None) == disk
    assert (tmp_path / "snapshot").exists()
    with kept(model_folder, tmp_path, disk) as app:
        host = stats(app).host
        assert host is not None
        assert (host.restored, host.entries) == (1, 1)
        assert metric(app, "relaygr_restored_entries") == 1
        assert bool(metric(app, "relaygr_disk_bytes")) == disk
        computed = app.service.engine.stats().tokens_computed
        close_scores(rank(app, "u")["scores"], wanted)
        assert app.service.engine.stats().tokens_computed == computed
        assert app.call("DELETE", "/v1/users/u").status_code == 200
    with kept(model_folder, tmp_path, disk) as app:
        host = stats(app).host
        assert host is not None
        assert host.entries == 0


def test_another_model_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    save_model(tmp_path / "a", 0)
    other = save_model(tmp_path / "b", 1)
    with kept(tmp_path / "a", tmp_path, disk=True) as app:
        learn(app, "u")
        rank(app, "u")
        before = app.service.engine
        answer = app.post("/v1/models/reload", {"path": str(tmp_path / "b")})
        assert answer["model"] == other
        assert (before.cache_stats().disk, stats(app).disk is not None) == (None, True)
        assert [path.name[:32] for path in (tmp_path / "disk").iterdir() if path.is_dir()] == [other]
        rank(app, "u")
    with kept(tmp_path / "a", tmp_path, disk=True) as app:
        host, disk = stats(app).host, stats(app).disk
        assert host is not None
        assert disk is not None
        assert (host.entries, host.restore_rejected, disk.entries) == (0, 1, 0)
        rank(app, "u")
