"""`relaygr bench one-shot`: a small run, and counted work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relaygr.bench.one_shot import beam_work, one_shot_work
from relaygr.cli.main import main
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.step import HeadSpec, StepModel
from relaygr.training.slate.shapes import world_config


def test_the_work_is_counted_from_shapes() -> None:
    shot = OneShot.zero(OneShotConfig(heads=(HeadSpec(name="watch"),), attributes=("topic",)))
    step = StepModel.zero(world_config())
    work, beam = one_shot_work(shot, 10), beam_work(step, 4, 30, 10)
    sizes = {name: each.size for name, each in shot.tensors.items() if name.endswith("weight")}
    # Each candidate passes every weight once; each pick looks at every candidate once.
    assert work == 30 * sum(sizes.values()) + 10 * 30 * (3 + 2)
    assert work <= 0.25 * beam
    assert beam_work(step, 8, 30, 10) > beam > beam_work(step, 4, 15, 10)


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.json"
    sizes = ["--lists", "300", "--pools", "30", "--requests", "10"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", "one-shot", *sizes, "--json", str(path)])
    assert not ended.value.code
    assert "multiply-adds a list" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["gain_share"] == pytest.approx(report["gain"] / report["beam_gain"])
    assert report["ms"] > 0
    with pytest.raises(SystemExit) as ended:
        main(["bench", "one-shot", "--pools", "0"])
    assert ended.value.code == 2
