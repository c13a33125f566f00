"""`relaygr eval ranker --caps` and `relaygr eval length` from end to end on generated events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from relaygr.cli.main import main

FAST = (
    "--set", "train.batch_rows=256", "--set", "train.negatives=4", "--set", "train.eval_requests=5",
    "--set", "train.batch_users=4",
)  # fmt: skip
SMALL = ("--max-requests", 8, "--calibration-requests", 6, "--negatives", 10)


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "events"
    size = ("--users", 30, "--mean-length", 20, "--items", 100, "--clusters", 5)
    assert run("data", "synth", "--out", folder, *size) == 0
    return folder


@pytest.fixture(scope="module")
def models(events: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    for seed in range(2):
        limits = ("--max-steps", 2, "--max-seq-len", 32, "--seed", seed)
        assert run("train", "ranker", "--events", events, "--out", root / f"m{seed}", *limits, *FAST) == 0
    return sorted(root.iterdir())


@pytest.mark.parametrize("candidates", ["sampled", "full"])
def test_several_models_at_several_caps(
    models: list[Path], events: Path, tmp_path: Path, candidates: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    options = ("--caps", "4,16,32", "--candidates", candidates, "--json", file, *SMALL)
    both = ("--model", models[0], "--model", models[1])
    assert run("eval", "ranker", *both, "--events", events, *options) == 0
    printed = capsys.readouterr().out
    assert "mean over users" in printed
    assert "32 − 4" in printed
    assert "mean of 2 model(s)" in printed
    report = json.loads(file.read_text())
    assert [model["name"] for model in report["models"]] == [str(model) for model in models]
    assert report["options"]["caps"] == [4, 16, 32]
    assert {one["cap"] for one in report["estimates"] if one["scorer"] == "model"} == {4, 16, 32}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--caps", "4,33"), "caps: 33 is more than the 32 events that model"),
        (("--caps", "4,x"), "--caps: 'x' in '4,x' is not a whole number"),
        (("--caps", ""), "--caps: '' in '' is not a whole number"),
        (("--caps", "16,4"), "caps: 4 after 16"),
        (("--caps", "4,16", "--own-share", "0.9"), "own_share: 0.9 must be in [0, 0.75]"),
        ((), "--model: 2 given, limit 1 without --caps"),
    ],
)
def test_bad_caps_are_one_line(
    models: list[Path],
    events: Path,
    options: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = ("--model", models[0], "--model", models[1])
    assert run("eval", "ranker", *both, "--events", events, *options) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed


def test_study_and_study_again(events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "study"
    few = ("--requests", 8, "--full-requests", 4, "--calibration-requests", 6, "--negatives", 10)
    command = ("eval", "length", "--events", events, "--out", out, "--seeds", "0,1", "--caps", "4,16")
    whole = (*command, *few, "--max-steps", 2, "--note", "synth-0=Generated.", *FAST)
    assert run(*whole) == 0
    printed = capsys.readouterr()
    assert "synth-0: Generated." in printed.out
    assert "16 − 4" in printed.out
    assert {path.name for path in out.iterdir()} == {"length.json", "length.md", "length.svg", "models"}
    assert "> Generated." in (out / "length.md").read_text()
    study = json.loads((out / "length.json").read_text())
    train = study["datasets"][0]["train"]
    assert (train["min_history"], train["max_history"]) == (4, 512)
    assert run(*whole) == 0
    again = json.loads((out / "length.json").read_text())
    assert all(model["reused"] for model in again["datasets"][0]["models"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seeds", "a"), "--seeds: 'a' in 'a' is not a whole number"),
        (("--note", "text"), "--note: 'text' must have the form NAME=TEXT"),
        (("--max-minutes-per-model", "0"), "train.max_minutes: 0.0 must be in"),
        (("--requests", "0"), "requests: 0 must be in"),
    ],
)
def test_bad_study_options_are_one_line(
    events: Path, tmp_path: Path, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("eval", "length", "--events", events, "--out", tmp_path / "out", *options) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
