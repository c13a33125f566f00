"""`bench drift`: one row a format with its sizes, drifts and verdict, for presets and for models on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from relaygr.bench import drift as module
from relaygr.bench.cell import random_ranker
from relaygr.bench.drift import DriftReport, DriftSpec, bench_drift, load_ms
from relaygr.cli.main import main
from relaygr.core.errors import ConfigError
from relaygr.memory.formats import formats
from relaygr.memory.layout import KvLayout
from relaygr.models.hstu import HstuConfig
from relaygr.models.weights import save_ranker

CONFIG = HstuConfig(
    hidden_size=16, num_layers=2, num_heads=2, qk_dim=32, v_dim=64, embedding_dim=16, item_rows=256,
    max_seq_len=200, scaling_seqlen=200, position_buckets=200,
)  # fmt: skip
NAMES = ["same", "bf16", "int8", "int8_page", "fp8", "fp8_page"]


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few loads and short users: how long they take does not matter here."""
    monkeypatch.setattr(module, "LOAD_TOKENS", 64)
    monkeypatch.setattr(module, "_LOADS", 1)
    monkeypatch.setattr(module, "_PREFIXES", (40, 90))
    monkeypatch.setattr(module, "CYCLES", 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model")
    save_ranker(random_ranker(CONFIG, torch.float32, seed=0), where)
    return where


def test_the_table_and_the_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "drift.json"
    assert run("bench", "drift", "--model", folder, "--json", file, "--candidates", 32, "--seeds", 2) == 0
    printed = capsys.readouterr().out
    report = msgspec.json.decode(file.read_bytes(), type=DriftReport)
    assert [row.format for row in report.rows] == NAMES
    assert all(f"\n {name} " in printed for name in NAMES)
    assert (report.model, report.preset, report.dtype) == (str(folder), "", "fp32")
    assert (report.prefixes, report.suffix, report.candidates, report.seeds) == ((40, 90), 25, 32, 2)
    rows = {row.format: row for row in report.rows}
    # 96 values a head and token; two bytes of a scale for keys and for values, or the same for a page.
    sizes = {"same": 1, "bf16": 0.5, "int8": 100 / 384, "int8_page": (96 * 32 + 4) / (384 * 32)}
    assert {name: rows[name].size_ratio for name in sizes} == pytest.approx(sizes)
    assert rows["fp8"].size_ratio == rows["int8"].size_ratio
    assert rows["same"].logit <= 1e-5
    assert rows["same"].cycles_logit <= 1e-5
    assert 0 < rows["bf16"].probability < rows["int8"].probability < rows["fp8"].probability < 0.01
    for row in report.rows:
        assert 0 <= row.overlap <= 1
        assert row.load_ms > 0
        assert (row.mean_share > 1e-6, row.cycles_probability > 1e-6) == (row.format != "same",) * 2
        assert row.refused == ("scale of a page" if row.format.endswith("_page") else "")


def test_above_the_limit_is_refused_and_exact_never(folder: Path) -> None:
    report = bench_drift(DriftSpec(model=folder, seeds=1, candidates=16, limit=1e-9))
    assert [row.refused for row in report.rows] == ["", *["above the limit"] * 5]


def test_a_preset_in_bf16() -> None:
    report = bench_drift(DriftSpec(dtype="bf16", seeds=1, candidates=16))
    assert (report.preset, report.model) == ("hstu-tiny", "")
    assert [row.format for row in report.rows] == [name for name in NAMES if name != "bf16"]
    assert report.rows[1].size_ratio == pytest.approx(34 / 64)


def test_load_times_are_one_a_format() -> None:
    layout = KvLayout(1, 1, 8, 8, torch.float32, 32)
    assert len(load_ms(layout, formats(torch.float32), tokens=64)) == len(NAMES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "fp64"}, "--dtype: 'fp64' must be fp32 or bf16"),
        ({"seeds": 0}, "--seeds: 0 is outside"),
        ({"candidates": 0}, "--candidates: 0 is outside"),
        ({"limit": 0.0}, "--limit: 0.0 must be in (0, 1]"),
        ({"preset": "hstu-teeny"}, "preset: 'hstu-teeny' is unknown"),
        ({"preset": "meta-dlrm-v3"}, "model: is cacheable per request"),
        ({"model": Path("nowhere")}, "nowhere"),
    ],
)
def test_bad_options_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        bench_drift(DriftSpec(**changes))  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_file_that_cannot_be_written_is_named_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("relaygr.bench.drift.choose", None)
    assert run("bench", "drift", "--json", "/") == 2
    assert "--json: / is a folder" in capsys.readouterr().err
