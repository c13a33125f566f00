"""`relaygr calibrate`: what it prints, the file it writes, and bad options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from relaygr.cli import calibrate as command
from relaygr.cli.main import main
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker
from relaygr.models.weights import fingerprint, save_ranker
from relaygr.relay.calibration import load_calibration


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    torch.manual_seed(0)
    config = HstuConfig(
        hidden_size=16, num_layers=1, num_heads=1, qk_dim=16, v_dim=16, embedding_dim=16, max_seq_len=256
    )
    save_ranker(Ranker(config), tmp_path / "model")
    before = torch.get_num_threads()
    yield tmp_path / "model"
    torch.set_num_threads(before)


def test_the_fit_is_printed_and_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "calibration.json"
    options = ["--seconds", "0.3", "--dtype", "fp32", "--threads", "1", "--json", file]
    assert run("calibrate", "--model", model, *options) == 0
    printed = capsys.readouterr().out
    found = load_calibration(file)
    assert (found.build.model, found.build.dtype, found.build.threads) == (
        fingerprint(model).hex(),
        "fp32",
        1,
    )
    assert found.build.machine in printed
    for value in (found.coefficients.t0_ms, found.coefficients.t1_ms, found.coefficients.t_launch_ms):
        assert f" {value:.4g} " in printed
    lines = printed.splitlines()
    assert sum(line.startswith((" rank ", " chunk ")) for line in lines) == len(found.points) > 5
    tau = found.coefficients.full_ms(2048, 0, 128)
    for name, value in (("b_rank_ms", 2 * tau), ("guard_ms", tau / 16), ("t_life_ms", 8 * tau)):
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert line.split()[1] == f"{value:.1f}"


def test_errors_of_points_are_printed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calibration.json"
    assert run("calibrate", "--model", model, "--seconds", "0.2", "--json", file) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = load_calibration(file)
    for point in found.points:
        kind = "chunk" if point.shape.chunk else "rank"
        shape = (point.shape.new_tokens, point.shape.cached_tokens, point.shape.candidates)
        cells = [kind, *map(str, shape), str(len(point.times_ms))]
        (row,) = (row for row in rows if row[:5] == cells)
        assert row[6:] == [
            f"{point.median_ms:.2f}",
            f"{found.coefficients.batch_ms([point.shape]):.2f}",
            f"{found.error(point):+.0%}",
        ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seconds", "0"], "--seconds: 0.0 must be in (0, 600]"),
        (["--seconds", "601"], "--seconds: 601.0 must be in (0, 600]"),
        (["--seconds", "nan"], "--seconds: nan must be in (0, 600]"),
        (["--json", "/"], "--json: / is a folder"),
        (["--threads", "-1"], "engine.threads: -1 must be in [0, 1024]"),
    ],
)
def test_bad_options_are_refused_before_the_work(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Engine", None)
    assert run("calibrate", "--model", "m", *options) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_a_folder_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    try:
        assert run("calibrate", "--model", tmp_path) == 2
    finally:
        torch.set_num_threads(before)
    assert "config.json: cannot be read" in capsys.readouterr().err.replace("\n", " ")
