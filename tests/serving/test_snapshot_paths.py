"""A snapshot path that names another file, or what a killed process left: nobody else's file is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from serving_apps import running
from test_cache_metrics import rank, with_host

from relaygr.config.host import HostConfig
from relaygr.config.load import load_config
from relaygr.core.errors import ConfigError


@pytest.mark.parametrize("content", [b"", b"SQLite format 3", b"RGRSNA"])
def test_another_file_is_left_alone(model_folder: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.db"
    path.write_bytes(content)
    with running(with_host(model_folder, snapshot_path=str(path))) as app:
        rank(app, "one")
        assert path.read_bytes() == content
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["mine.db"]


def test_a_pipe_is_not_waited_for(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with running(with_host(model_folder, snapshot_path=str(path))) as app:
        rank(app, "one")
    assert path.is_fifo()


def test_what_a_killed_process_left_unfinished_goes(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    (tmp_path / "snapshot.new").write_bytes(b"RGRSNAP and somebody")
    with running(with_host(model_folder, snapshot_path=str(path))) as app:
        assert not (tmp_path / "snapshot.new").exists()
        rank(app, "one")
    assert path.exists()


@pytest.mark.parametrize("path", [".", "/", "..", "a/.."])
def test_a_path_must_name_a_file(path: str) -> None:
    with pytest.raises(ConfigError, match=r"host\.snapshot_path: .* must name a file"):
        HostConfig(snapshot_path=path)


def test_several_policies_as_text() -> None:
    config = load_config(None, {}, ["host.shadow_policies=lru, gdsf"])
    assert config.host.shadow_policies == ("lru", "gdsf")
    with pytest.raises(ConfigError, match=r"must be names of 'gd_cost', 'lru', .* commas"):
        load_config(None, {}, ["host.shadow_policies=lru,mru"])
    with pytest.raises(ConfigError, match="names one twice"):
        HostConfig(shadow_policies=("lru", "lru"))
