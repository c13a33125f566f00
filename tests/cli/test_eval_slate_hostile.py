"""`relaygr eval slate` on hostile logs, models and options: one line and status 2, or "not estimable"."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relaygr.cli.main import main
from relaygr.listwise.folds import Part, Split
from relaygr.listwise.items import read_items
from relaygr.listwise.step import StepModel
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.offline.cascade import Doubt
from relaygr.training.slate.offline.logged import open_models
from relaygr.training.slate.offline.report import SlateReport
from relaygr.training.slate.read_log import read_log
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.simulated import write_world
from relaygr.training.slate.world import World, WorldConfig


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("world")
    write_world(made, World(WorldConfig(items=200, candidates=12, length=3)), 400, 0)
    logs = read_log(made / "logs", read_items(made / "items.npz")).logs
    fold = Split().fold(Part.STEP)
    config = msgspec.structs.replace(world_config(), fold=fold)
    for seed in range(2):
        some = logs.select(fold.rows(logs.users))
        train_step(config, some, StepTraining(epochs=1, seed=seed)).model.save(made / f"step{seed}")
    return made


def evaluate(world: Path, *arguments: object, logs: Path | None = None, model: Path | None = None) -> int:
    given = [
        "--logs",
        logs or world / "logs",
        "--value",
        world / "value.json",
        "--items",
        world / "items.npz",
    ]
    given += ["--model", model or world / "step0", *arguments]
    return run(*given, *(() if "--requests" in arguments else ("--requests", 5)))


def run(*arguments: object) -> int:
    try:
        main(["eval", "slate", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def changed(world: Path, folder: Path, **fields: Any) -> Path:
    """The log with some fields of every list as they are given."""
    folder.mkdir()
    (folder / "log.json").write_bytes((world / "logs" / "log.json").read_bytes())
    lines = (world / "logs" / "lists-1.jsonl").read_text().splitlines()
    made = [json.dumps(json.loads(line) | fields) for line in lines]
    (folder / "lists-1.jsonl").write_text("\n".join(made) + "\n")
    return folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seed", -1), "seed: -1 must be in [0, 4294967295]"),
        (("--seed", 2**40), "seed: 1099511627776 must be in"),
        (("--relevance", "other"), "relevance: head 'other' is none of watch"),
        (("--scores", "other"), "softmax.of: 'other' is none of unit, raw, watch"),
        (("--temperature", 0), "softmax.temperature: 0.0 must be in (0, 1000000]"),
        (("--temperature", "nan"), "softmax.temperature: nan must be in"),
        (("--strength", -1), "strength: -1.0 must be in [0, 1000000]"),
        (("--strength", "inf"), "strength: inf must be in"),
        (("--requests", 0), "requests: 0 must be in [1, 1000000]"),
        (("--length", 0), "--length: 0 is below 1"),
        (("--length", 501), "length: 501 must be in [0, 500]"),
        (("--length", 400), "length: 400 is above the candidates of every request"),
        (("--data", "x"), "--data: goes with --demo, not with --logs"),
        (("--lists", 0), "--lists: goes with --simulate, not with --logs"),
        (("--seeds", 5), "--seeds: goes with --demo or --simulate, not with --logs"),
        (("--judge", "/dev/null"), "--judge"),
    ],
)
def test_wrong_options(
    world: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], said: str
) -> None:
    assert evaluate(world, *arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--simulate", "--judge", "j"), "--judge: goes with --logs, not with --simulate"),
        (("--simulate", "--unrecorded"), "--unrecorded: goes with --logs, not with --simulate"),
        (("--simulate", "--scores", "watch"), "--scores: goes with --logs, not with --simulate"),
        (("--simulate", "--length", 5), "--length: goes with --logs or --demo, not with --simulate"),
        (("--simulate", "--relevance", "watch"), "--relevance: goes with --logs, not with --simulate"),
        (
            ("--demo", "movielens", "--data", "d", "--lists", 9),
            "--lists: goes with --simulate, not with --demo",
        ),
        (
            ("--demo", "movielens", "--data", "d", "--model", "m"),
            "--model: goes with --logs, not with --demo",
        ),
        (("--demo", "movielens", "--data", "nowhere"), "nowhere has neither ratings.csv nor"),
        (("--simulate", "--lists", 0), "lists: 0 must be in [1, 1000000]"),
        (("--simulate", "--lists", 10**12), "lists: 1000000000000 must be in"),
        (("--simulate", "--seeds", 0), "seeds: 0 must be in [1, 1000]"),
        (("--simulate", "--temperature", "nan"), "temperature: nan must be in"),
        (("--demo", "movielens", "--data", "d", "--requests", 10**9), "requests: 1000000000 must be in"),
    ],
)
def test_options_of_another_mode(
    capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], said: str
) -> None:
    assert run(*arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


@pytest.mark.parametrize(("each", "doubt"), [(-80.0, Doubt.ESS), (-740.0, Doubt.WEIGHTS)])
def test_propensities_that_nothing_was_drawn_by(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], each: float, doubt: Doubt
) -> None:
    logs = changed(world, tmp_path / "logs", log_propensity=[each] * 3)
    assert evaluate(world, "--json", tmp_path / "r.json", logs=logs) == 0
    said = capsys.readouterr()
    assert "Warning" not in said.err
    assert "not estimable" in said.out
    report = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=SlateReport)
    assert report.estimates
    assert not any(one.estimable for one in report.estimates)
    assert any(one.doubt is doubt for one in report.estimates)


def test_logs_without_positions(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = changed(world, tmp_path / "logs", consumed=0, labels=[], more=False)
    assert evaluate(world, logs=logs) == 2
    assert "consumed: is 0 in all" in capsys.readouterr().err


def test_a_copy_is_no_seed(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(world / "step0", copy)
    assert evaluate(world, "--model", copy) == 2
    assert f"{copy} has the weights of {world / 'step0'}" in capsys.readouterr().err
    # A copy whose configuration says something else is one as well.
    model = StepModel.load(copy)
    StepModel(msgspec.structs.replace(model.config, fold=None), model.tensors).save(copy)
    assert evaluate(world, "--model", copy) == 2
    assert "has the weights of" in capsys.readouterr().err
    assert len(open_models([world / "step0", world / "step1"])) == 2


def test_damaged_models(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "m"
    for change in (b"", b"{}", b"\x1f\x8b", b"[" * 100_000):
        shutil.copytree(world / "step0", good, dirs_exist_ok=True)
        (good / "step.json").write_bytes(change)
        assert evaluate(world, model=good) == 2
        told = capsys.readouterr().err
        assert f"--model: {good}" in told
        assert "Traceback" not in told
    shutil.copytree(world / "step0", good, dirs_exist_ok=True)
    (good / "step.safetensors").write_bytes(b"\xff" * 8)
    assert evaluate(world, model=good) == 2
    assert evaluate(world, model=world / "items.npz") == 2
    assert "Traceback" not in capsys.readouterr().err
