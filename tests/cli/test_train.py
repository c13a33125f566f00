"""`relaygr train` and `relaygr eval` from end to end on generated events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relaygr.cli.main import main

FAST = ["--set", "train.batch_rows=256", "--set", "train.negatives=4", "--set", "train.eval_requests=5"]


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "events"
    size = ("--users", 30, "--mean-length", 20, "--items", 100, "--clusters", 5)
    assert run("data", "synth", "--out", folder, *size) == 0
    return folder


@pytest.fixture(scope="module")
def model(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "m"
    limits = ("--max-steps", 2, "--max-seq-len", 64)
    assert run("train", "ranker", "--events", events, "--out", out, *limits, *FAST) == 0
    return out


def test_training_leaves_model_state_and_report(model: Path) -> None:
    assert {path.name for path in model.iterdir()} == {
        "config.json",
        "model.safetensors",
        "training.pt",
        "train_report.json",
    }
    assert json.loads((model / "config.json").read_text())["max_seq_len"] == 64
    report = json.loads((model / "train_report.json").read_text())
    assert (report["steps"], report["stopped"], report["data"]) == (2, "steps", "synth-0")


def test_resume(model: Path, events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = ("train", "ranker", "--events", events, "--out", model, "--max-steps", 3, "--resume", *FAST)
    assert run(*again, "--max-seq-len", 64) == 0
    assert "3 steps" in capsys.readouterr().out
    assert run(*again, "--max-seq-len", 32) == 2
    assert "model.max_seq_len was 64, now 32" in capsys.readouterr().err


@pytest.mark.parametrize("candidates", ["sampled", "full"])
def test_evaluation_prints_and_writes(
    model: Path, events: Path, tmp_path: Path, candidates: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep" / "report.json"
    options = ("--max-requests", 8, "--candidates", candidates, "--negatives", 20, "--json", file)
    assert run("eval", "ranker", "--model", model, "--events", events, *options) == 0
    printed = capsys.readouterr().out
    assert "mean over users" in printed
    assert "mean over requests" in printed
    report = json.loads(file.read_text())
    assert report["requests"] + report["unrankable_requests"] == 8
    assert {one["scorer"] for one in report["estimates"]} == {"model", "popularity", "recency"}


def test_bad_length_is_one_line(events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "ranker", "--events", events, "--out", tmp_path, "--max-seq-len", 0) == 2
    assert "model.max_seq_len: 0" in capsys.readouterr().err


def test_unknown_setting_is_one_line(
    events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "ranker", "--events", events, "--out", tmp_path, "--set", "train.speed=9") == 2
    assert "train.speed" in capsys.readouterr().err
