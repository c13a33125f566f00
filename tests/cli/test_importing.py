"""`relaygr import hstu`: what it prints and writes, and one line for what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from relaygr.cli.main import main
from relaygr.config.settings import EngineConfig
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import RankRequest

D, H, E, N, ITEMS = 16, 2, 8, 12, 20
LAYER = "_hstu._attention_layers.0."


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = {
        f"{LAYER}_uvqk": torch.randn(D, 4 * H * E) * 0.2,
        f"{LAYER}_o.weight": torch.randn(D, H * E) * 0.2,
        f"{LAYER}_o.bias": torch.zeros(D),
        f"{LAYER}_rel_attn_bias._pos_w": torch.randn(2 * N - 1),
        f"{LAYER}_rel_attn_bias._ts_w": torch.randn(129),
        "_input_features_preproc._pos_emb.weight": torch.randn(N, D),
        "_embedding_module._item_emb.weight": torch.randn(ITEMS, D),
    }
    torch.save({"model_state_dict": state}, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_import_and_rank(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("num_blocks = 1\n")
    out = tmp_path / "m"
    options = ("--from", "research", "--out", out, "--config", tmp_path / "c.toml")
    assert run("import", "hstu", checkpoint, *options, "--set", "num_heads=2", "--set", "dv=8") == 0
    printed = capsys.readouterr().out
    assert "detected a Meta research checkpoint" in printed
    assert "assumed: linear_activation = silu" in printed
    assert "cacheable = append: prefixes are kept" in printed
    assert re.search(r"golden example of meta_research: largest difference \d", printed)
    report = json.loads((out / "import.json").read_text())
    assert report["fingerprint"] in printed
    assert {one["path"] for one in report["files"]} == {str(checkpoint), str(tmp_path / "c.toml")}
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "import.json", "model.safetensors"]
    engine = Engine.load(out, EngineConfig(dtype="fp32", device_bytes=1 << 22))
    history = UserHistory("u", items=[3, 5, 3], timestamps=[10, 20, 30])
    result = engine.rank(RankRequest(history, candidates=[1, 2, 19], query_time=40))
    assert result.logits.shape == (3, 1)
    assert float(abs(result.logits).max()) <= 1 + 1e-6


def test_several_tables_behind_one_option(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.load(checkpoint)["model_state_dict"]
    table = state.pop("_embedding_module._item_emb.weight")
    torch.save({"model_state_dict": state}, checkpoint)
    torch.save({"rows": table}, tmp_path / "t.pt")
    command = (
        "import",
        "hstu",
        checkpoint,
        "--from",
        "research",
        "--out",
        tmp_path / "m",
        "--set",
        "num_heads=2",
    )
    assert run(*command) == 2
    assert "missing table 'item'" in capsys.readouterr().err
    assert run(*command, "--tables", f"item={tmp_path / 't.pt'}", f"item={tmp_path / 't.pt'}:rows") == 2
    assert "table 'item' is given twice" in capsys.readouterr().err
    assert run(*command, "--tables", f"item={tmp_path / 't.pt'}:rows") == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "meta"), "this is a Meta research checkpoint, --from research (--from meta was given)"),
        (
            ("--from", "research"),
            "config: num_heads: shapes do not tell; give in --config, or as --set num_heads=",
        ),
        (("--from", "research", "--set", "num_headz=2"), "unknown key; did you mean 'num_heads'?"),
        (
            ("--from", "research", "--set", "num_heads=2", "--tables", "item=nowhere.npy"),
            "table 'item' is given",
        ),
        (("--from", "research", "--config", "nowhere.toml"), "--config: cannot read nowhere.toml"),
        (("--from", "research", "--set", "num_heads=2", "--scaling-seqlen", "7"), "--scaling-seqlen: 7, but"),
    ],
)
def test_what_is_wrong_is_one_line(
    checkpoint: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("import", "hstu", checkpoint, *options, "--out", tmp_path / "m") == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("relaygr: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "m").exists()


def test_a_bad_target_is_refused_before_reading(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "afile").write_text("x")
    assert run("import", "hstu", tmp_path / "no.pt", "--from", "meta", "--out", tmp_path / "afile") == 2
    assert "afile is a file" in capsys.readouterr().err
