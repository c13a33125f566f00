"""`relaygr verify`: a table and a verdict, status 0 or 1, and JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from relaygr.bench.verify import VerifyReport
from relaygr.cache import books
from relaygr.cli.main import main
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker
from relaygr.models.weights import save_ranker


def run(*arguments: object) -> int:
    before = torch.get_num_threads()
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        torch.set_num_threads(before)
    return 0


@pytest.fixture
def command(tmp_path: Path) -> list[object]:
    events = ["--users", 10, "--mean-length", 60, "--max-length", 200, "--items", 100]
    assert run("data", "synth", "--out", tmp_path / "events", *events) == 0
    torch.manual_seed(0)
    config = HstuConfig(
        hidden_size=16, num_layers=1, num_heads=1, qk_dim=16, v_dim=16, embedding_dim=16, item_rows=256
    )
    save_ranker(Ranker(config), tmp_path / "model")
    return ["verify", "--model", tmp_path / "model", "--events", tmp_path / "events", "--users", 4]


def test_agreement_is_status_0(
    command: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--candidates", 16, "--json", tmp_path / "out" / "verify.json") == 0
    printed = capsys.readouterr().out
    assert "every way of serving agrees" in printed
    assert "not exercised" in printed  # ten short users fit the smallest pool
    report = msgspec.json.decode((tmp_path / "out" / "verify.json").read_bytes(), type=VerifyReport)
    assert report.ok
    assert report.users == 4


def test_a_fault_is_status_1(
    command: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "longest_match", lambda stored, wanted: min(stored.tokens, wanted.tokens))
    assert run(*command, "--candidates", 16) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "edited: user" in printed


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--threads", -1, "threads: -1 must be in [0, 1024]"),
        ("--threads", 10**9, "threads: 1000000000 must be in [0, 1024]"),
        ("--seed", -1, "seed: -1 must be in [0, "),
    ],
)
def test_a_number_out_of_range_is_status_2(
    command: list[object], option: str, value: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, option, value) == 2
    assert words in capsys.readouterr().err


def test_a_missing_model_is_status_2(
    command: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command[2] = tmp_path / "nowhere"
    assert run(*command) == 2
    assert "nowhere" in capsys.readouterr().err
