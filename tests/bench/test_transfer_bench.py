"""`bench transfer` on a small prefix: every way gives the same scores, and the report adds up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from relaygr.bench.cell import random_ranker
from relaygr.bench.transfer import TransferReport, TransferSpec, _User, bench_transfer
from relaygr.cli.main import main
from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels.select import choose
from relaygr.memory.host import HostPool


@pytest.fixture(autouse=True)
def _threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_report_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    sizes = ["--history", "100", "--suffix", "5", "--candidates", "9", "--rounds", "2", "--threads", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", "transfer", "--json", str(file), *sizes])
    assert not ended.value.code
    report = msgspec.json.decode(file.read_bytes(), type=TransferReport)
    assert (report.loaded_tokens, report.layers, report.rounds) == (95, 4, 2)
    assert report.loaded_mib == pytest.approx(95 * 4 * 4 * 128 * 4 / 2**20)
    c, t = report.layer_compute_ms, report.layer_copy_ms
    assert report.bound_ms == pytest.approx(max(c, t) * 4 + min(c, t))
    assert report.copy_ms == pytest.approx(4 * t)
    assert report.gib_per_s == pytest.approx(report.loaded_mib / 1024 / (report.copy_ms / 1e3))
    assert report.max_score_diff <= 1e-5
    out = capsys.readouterr().out
    assert "beside the pass" in out
    assert "bound max(c, t) * 4 + min(c, t)" in out


def test_a_copy_that_brings_something_else_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = HostPool.load_layer

    def wrong(host: HostPool, *args: object) -> None:
        whole(host, *args)  # type: ignore[arg-type]
        host.keys.add_(0.1)

    monkeypatch.setattr(HostPool, "load_layer", wrong)
    with pytest.raises(BackendError, match="scores differ"):
        bench_transfer(TransferSpec(history=64, suffix=4, candidates=4, rounds=1, threads=1))


def test_a_layer_that_does_not_come_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, choice = TransferSpec(history=40, suffix=0, candidates=4), choose("cpu", "fp32")
    user = _User(spec, random_ranker(spec.config, choice.dtype, 0), choice.kernel)

    def torn(*_: object) -> None:
        raise BackendError("torn")

    monkeypatch.setattr(HostPool, "load_layer", torn)
    with pytest.raises(BackendError, match="layer 0 did not come: torn"):
        user.layer_wise()
    with pytest.raises(BackendError, match="a copy did not come: torn"):
        user.lane_first()
    user.close()


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--history", {"history": 0}),
        ("--suffix", {"history": 8, "suffix": 8}),
        ("--candidates", {"candidates": 0}),
        ("--rounds", {"rounds": 0}),
        ("--threads", {"threads": -1}),
        ("--dtype", {"dtype": "fp8"}),
    ],
)
def test_bad_options(option: str, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=option):
        TransferSpec(**values)  # type: ignore[arg-type]
