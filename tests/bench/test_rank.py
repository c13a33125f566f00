"""`bench rank`: the dense pass equals the kernel, the report is complete, bad options are named."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch

from relaygr.bench import machine, rank
from relaygr.bench.cell import Cell, random_ranker
from relaygr.bench.machine import MatrixProbe
from relaygr.bench.naive import NaivePass
from relaygr.bench.peers import PEER_FP32_GFLOPS, compare
from relaygr.bench.rank import TOLERANCE, RankSpec, bench_rank
from relaygr.bench.report import RankReport
from relaygr.cli.main import main
from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels.cpu import AtenRoute, BlockedKernel
from relaygr.models.cost import cost
from relaygr.models.presets import preset


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix rate of a toy product: what it is does not matter here."""
    monkeypatch.setattr(rank, "MatrixProbe", partial(MatrixProbe, size=64))
    monkeypatch.setattr(machine, "_COPY_BYTES", 1 << 16)


@pytest.mark.parametrize(("history", "candidates"), [(17, 1), (40, 7), (96, 16), (300, 33)])
def test_the_dense_pass_equals_the_kernel(history: int, candidates: int) -> None:
    model = random_ranker(preset("hstu-tiny"), torch.float32, seed=3)
    cell = Cell(model, BlockedKernel(AtenRoute()), history, candidates, seed=4)
    with torch.inference_mode():
        wanted = NaivePass(model, history, candidates)(cell.row)
    assert wanted.shape == (candidates, 1)
    for got in (cell.full(), cell.hit()):
        torch.testing.assert_close(got, wanted, atol=2e-6, rtol=0)
    assert cell.append().shape == cell.prefill().shape == (0, 1)
    # Appending and prefilling rewrote the very rows that were there.
    torch.testing.assert_close(cell.hit(), wanted, atol=2e-6, rtol=0)


def test_the_dense_pass_sees_the_history() -> None:
    """Guards the comparison above: scores that ignored attention would agree as well."""
    model = random_ranker(preset("hstu-tiny"), torch.float32, seed=3)
    cell = Cell(model, BlockedKernel(AtenRoute()), 64, 8, seed=4)
    naive = NaivePass(model, 64, 8)
    with torch.inference_mode():
        changed = replace(cell.row, items=cell.row.items.flip(0))
        assert float((naive(changed) - naive(cell.row)).abs().max()) > 1e-4


def test_the_dense_pass_refuses_what_it_leaves_out() -> None:
    config = msgspec.structs.replace(preset("hstu-tiny"), window=8)
    with pytest.raises(ConfigError, match=r"model\.window: 8"):
        NaivePass(random_ranker(config, torch.float32, 0), 32, 4)


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "rank.json"
    grid = ["--histories", "40,64", "--candidates", "8", "--dtypes", "fp32,bf16", "--repeats", "2"]
    assert run("bench", "rank", "--preset", "hstu-tiny", *grid, "--json", file) == 0
    printed = capsys.readouterr().out
    assert "40/8" in printed
    assert "hstu-tiny, bf16" in printed
    report = msgspec.json.decode(file.read_bytes(), type=RankReport)
    assert [(r.history, r.candidates, r.dtype) for r in report.rows] == [
        (40, 8, "fp32"),
        (64, 8, "fp32"),
        (40, 8, "bf16"),
        (64, 8, "bf16"),
    ]
    assert report.peers == []
    raw = msgspec.json.decode(file.read_bytes())
    assert {"cpu", "cores", "threads", "torch", "python", "copy_gb_s"} <= raw["machine"].keys()
    for dtype in ("fp32", "bf16"):
        routes = raw["machine"]["matrix_gflops_by_route"][dtype]
        assert raw["machine"]["matrix_gflops"][dtype] == max(routes.values()) > 0
    for row in report.rows:
        best = getattr(report.machine.matrix_gflops, row.dtype)
        flops = cost(preset("hstu-tiny"), 4).prefill_flops(row.history)
        assert row.prefill_efficiency == pytest.approx(flops / row.prefill_ms / 1e6 / best)
        assert row.prefill_efficiency_torch_mm >= row.prefill_efficiency
        assert row.full_min_ms <= row.full_ms
        assert row.max_score_diff <= TOLERANCE[row.dtype] * max(row.score_spread, 0.1)
        assert (row.rounds, row.naive_runs) == (2, 2)


def test_quick_is_one_shape_and_threads_are_set(tmp_path: Path) -> None:
    file, before = tmp_path / "rank.json", torch.get_num_threads()
    try:
        options = ["--quick", "--dtypes", "fp32", "--repeats", "1", "--threads", "1", "--json", file]
        assert run("bench", "rank", "--preset", "hstu-tiny", *options) == 0
    finally:
        torch.set_num_threads(before)
    report = msgspec.json.decode(file.read_bytes(), type=RankReport)
    assert [(r.history, r.candidates, r.rounds) for r in report.rows] == [(2048, 128, 1)]
    assert report.machine.threads == 1
    assert "bf16" not in msgspec.json.decode(file.read_bytes())["machine"]["matrix_gflops"]


def test_a_kernel_that_disagrees_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOLERANCE, "fp32", -1.0)
    spec = RankSpec("hstu-tiny", (32,), (4,), ("fp32",), repeats=1)
    with pytest.raises(BackendError, match="history 32, fp32: kernel and dense pass differ"):
        bench_rank(spec)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--histories", "512,4097", "--histories: 4097 is outside [17, 4096]"),
        ("--histories", "16", "--histories: 16 is outside [17, 4096]"),
        ("--histories", "many", "--histories: 'many' in 'many' is not a whole number"),
        ("--histories", "512,", "--histories: '' in '512,' is not a whole number"),
        ("--candidates", "0", "--candidates: 0 is outside [1, 16384]"),
        ("--dtypes", "fp64", "--dtypes: 'fp64' must be fp32, bf16 or fp32,bf16"),
        ("--dtypes", "fp32,fp32", "--dtypes: 'fp32,fp32' must be"),
        ("--repeats", "0", "--repeats: 0 is outside [1, 10000]"),
        ("--threads", "-1", "--threads: -1 is outside [0, 1024]"),
        ("--seed", "-1", "--seed: -1 is outside"),
        ("--preset", "hstu-tinny", "preset: 'hstu-tinny' is unknown; did you mean hstu-tiny"),
        ("--json", ".", "--json: . is a folder"),
    ],
)
def test_bad_options(option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "rank", option, value) == 2
    assert words in capsys.readouterr().err


def test_peers_are_scaled_by_the_rate_of_their_dtype() -> None:
    found = compare("full", 2048, 128, "fp32", 100.0, 2 * PEER_FP32_GFLOPS, 409.0)
    assert [(p.peer, p.peer_ms, p.scaled_ms) for p in found] == [
        ("Meta", 784, pytest.approx(392)),
        ("NVIDIA", 993, pytest.approx(496.5)),
    ]
    assert found[0].speed_up == pytest.approx(3.92)
    # In fp32 this machine is twice as fast as theirs, in bf16 as fast: fp32 is the better dtype here.
    assert found[0].speed_up_best == pytest.approx(3.92)
    (hit,) = compare("hit", 2048, 128, "bf16", 41.3, None, 409.0)
    assert (hit.speed_up, hit.speed_up_best) == (pytest.approx(1.0), None)
    assert compare("hit", 2048, 128, "fp32", 1.0, None, 409.0) == []
    assert compare("full", 4096, 128, "fp32", 1.0, 100.0, 409.0) == []
