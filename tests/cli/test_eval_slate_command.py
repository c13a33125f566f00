"""`relaygr eval slate` from a log and its models to a report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from relaygr.cli.main import main
from relaygr.listwise.folds import Part, Split
from relaygr.listwise.items import read_items
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.offline.report import SlateReport, Source
from relaygr.training.slate.read_log import read_log
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.simulated import write_world
from relaygr.training.slate.world import World, WorldConfig


def test_a_log_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path, World(WorldConfig(items=200, candidates=15, length=4)), 400, 0)
    logs = read_log(tmp_path / "logs").logs
    fold = Split().fold(Part.STEP)
    config = msgspec.structs.replace(world_config(), fold=fold)
    some = read_log(tmp_path / "logs", read_items(tmp_path / "items.npz")).logs.select(fold.rows(logs.users))
    train_step(config, some, StepTraining(epochs=2)).model.save(tmp_path / "step")
    common = ["eval", "slate", "--logs", str(tmp_path / "logs"), "--value", str(tmp_path / "value.json")]
    common += ["--model", str(tmp_path / "step"), "--items", str(tmp_path / "items.npz")]
    with pytest.raises(SystemExit, match="0"):
        main([*common, "--requests", "20", "--scores", "watch", "--json", str(tmp_path / "r.json")])
    assert "not estimable" in capsys.readouterr().out
    report = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=SlateReport)
    assert {one.source for one in report.evidence} == {Source.JUDGE}
    assert "linear" in (report.judge_version or "")
    with pytest.raises(SystemExit):
        main([*common, "--judge", str(tmp_path / "step")])
    assert "is the selector itself" in capsys.readouterr().err


def test_one_source_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "slate"])
    assert "exactly one of" in capsys.readouterr().err
