"""Real replicas under load: both shapes serve everything while members go, come and change their model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relaygr.bench.cluster import ClusterSpec
from relaygr.cli.bench_cluster import cluster
from relaygr.core.errors import ConfigError


@pytest.mark.timeout(180)
@pytest.mark.parametrize("shape", ["gateway", pytest.param("peers", marks=pytest.mark.slow)])
def test_nothing_fails_and_users_follow(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.json"
    cluster(json=file, shape=shape, replicas=2, users=30, rate=20, phase_s=2)
    found = json.loads(file.read_text())
    assert found["affinity_share"] == 1.0
    assert (found["failed_after_kill"], found["hung_after_kill"], found["failed_in_update"]) == (0, 0, 0)
    # One stays of two, and another comes: half of the users or so are the new one's.
    assert 0.2 <= found["moved_share_after_add"] <= 0.8
    assert (found["checked"], found["mixed_versions"], found["wrong"]) == (40, 0, [])
    assert [one["visits"] for one in found["phases"]] == [40] * 5
    assert (found["hop_ms"] is not None) == (shape == "gateway")
    out = capsys.readouterr().out
    assert "update: 0 failed" in out
    assert "recovered" in out


@pytest.mark.parametrize(
    ("name", "value"),
    [("shape", "ring"), ("replicas", 1), ("users", 0), ("rate", 0), ("phase_s", 0.1), ("deadline_ms", 0)],
)
def test_wrong_settings_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}.*{value}"):
        ClusterSpec(**{name: value})  # type: ignore[arg-type]
