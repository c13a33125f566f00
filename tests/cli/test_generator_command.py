"""`relaygr sids`, `train generator` and `eval generator` from end to end on generated events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relaygr.cli.main import main

FAST = ["--set", "train.batch_rows=256", "--set", "train.negatives=4", "--set", "train.eval_requests=5"]
SMALL = [
    part
    for name, value in {
        "layers": 2, "hidden": 16, "heads": 2, "kv_heads": 2, "head_dim": 8, "mlp": 16, "max_items": 8,
        "min_items": 4, "batch_windows": 4, "eval_requests": 4, "eval_width": 8,
    }.items()
    for part in ("--set", f"train_generator.{name}={value}")
]  # fmt: skip


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset, a ranker, semantic ids from it, and a generator of them."""
    root = tmp_path_factory.mktemp("generator")
    at = {name: root / name for name in ("events", "ranker", "sids", "model")}
    size = ("--users", 30, "--mean-length", 20, "--items", 60, "--clusters", 5)
    assert run("data", "synth", "--out", at["events"], *size) == 0
    data = ("--events", at["events"])
    assert (
        run("train", "ranker", *data, "--out", at["ranker"], "--max-steps", 1, "--max-seq-len", 64, *FAST)
        == 0
    )
    ids = ("--ranker", at["ranker"], "--sizes", "8,8", "--collision", "digit")
    assert run("sids", "build", *data, *ids, "--out", at["sids"]) == 0
    limits = ("--sids", at["sids"], "--max-steps", 2)
    assert run("train", "generator", *data, "--out", at["model"], *limits, *SMALL) == 0
    return at


def test_training_leaves_a_model_that_others_read_too(folders: dict[str, Path]) -> None:
    assert {path.name for path in folders["model"].iterdir()} == {
        "config.json",
        "generation.json",
        "model.safetensors",
        "train_report.json",
        "training.pt",
    }
    config = json.loads((folders["model"] / "config.json").read_text())
    recipe = json.loads((folders["model"] / "generation.json").read_text())
    assert config["model_type"] == "qwen3"
    assert config["vocab_size"] == 1 + sum(recipe["sizes"])
    assert recipe["sid_token_map"] == {"bases": [1, 9, 17]}
    report = json.loads((folders["model"] / "train_report.json").read_text())
    assert (report["steps"], report["stopped"], report["sids"]) == (2, "steps", recipe["sids"])


def test_resume(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    again = (
        "train",
        "generator",
        "--events",
        folders["events"],
        "--sids",
        folders["sids"],
        "--resume",
        *SMALL,
    )
    assert run(*again, "--out", folders["model"], "--max-steps", 2) == 0
    assert "2 steps" in capsys.readouterr().out
    assert run(*again, "--out", folders["model"], "--set", "train_generator.within=0.5") == 2
    assert "train.within was 0.1, now 0.5" in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["hybrid", "linear"])
def test_generators_with_linear_layers(
    arch: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--events", folders["events"], "--sids", folders["sids"])
    shape = ("--set", "train_generator.full_every=2", "--set", "train_generator.linear_key_dim=8")
    limits = ("--arch", arch, "--max-steps", 1, *SMALL, *shape)
    assert run("train", "generator", *data, "--out", tmp_path / "model", *limits) == 0
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["model_type"] == "qwen3_next"
    assert config["layer_types"].count("full_attention") == (arch == "hybrid")
    assert run("eval", "generator", "--model", tmp_path / "model", *data, "--max-requests", 4) == 0
    assert "invalid share 0;" in capsys.readouterr().out


@pytest.mark.parametrize("ranker", [False, True])
def test_evaluation_prints_and_writes(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], ranker: bool
) -> None:
    given = [part for name in ("model", "events", "sids") for part in (f"--{name}", folders[name])]
    given += ["--ranker", folders["ranker"]] if ranker else []
    out = tmp_path / "report.json"
    assert run("eval", "generator", *given, "--max-requests", 8, "--width", 20, "--json", out) == 0
    shown = capsys.readouterr().out
    assert "invalid share 0;" in shown
    report = json.loads(out.read_text())
    assert report["invalid_share"] == 0
    assert report["ids_named"] == 20 * report["requests"]
    scorers = {one["scorer"] for one in report["coverage"]}
    assert scorers == {"generator", "popularity", "recency", *(["ranker"] if ranker else [])}


def test_other_ids_are_refused(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    build = ("--ranker", folders["ranker"], "--events", folders["events"], "--sizes", "4,4", "--out", other)
    assert run("sids", "build", *build) == 0
    given = ("--model", folders["model"], "--events", folders["events"], "--sids", other)
    assert run("eval", "generator", *given) == 2
    assert "the model was trained on" in capsys.readouterr().err
    assert run("eval", "generator", *given[:-1], folders["sids"], "--width", 0) == 2
    assert "width: 0" in capsys.readouterr().err
