"""`bench beam`: what its options ask for, and how the answer is printed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from relaygr.bench.beam import BeamReport, BeamSpec
from relaygr.bench.beam_highest import RateFound
from relaygr.bench.beam_rates import VARIANTS
from relaygr.bench.beam_selection import SelectionCell
from relaygr.bench.machine import Machine, MatrixGflops, MatrixGflopsByRoute
from relaygr.cli import bench_beam
from relaygr.cli.main import main

MACHINE = Machine(
    cpu="any",
    cores=2,
    threads=2,
    features=(),
    memory_bytes=None,
    matrix_gflops=MatrixGflops(None, None),
    matrix_gflops_by_route=MatrixGflopsByRoute(),
    copy_gb_s=1.0,
    torch="any",
    python="any",
    system="any",
)
CELL = SelectionCell(
    sids=1_500_000,
    width=256,
    level=2,
    normalization="level",
    candidates=123_456,
    columns=8192,
    runs=21,
    prepare_ms=1.2,
    select_ms=5.5,
    both_ms=6.8,
    denied_ms=9.0,
    looped_ms=80.0,
    sorted_ms=30.0,
)
RATE = RateFound(
    name="full sort",
    sids=1_500_000,
    target_ms=3000.0,
    alone_ms=300.0,
    saturated_per_s=4.0,
    keeps_per_s=2.5,
    fails_per_s=2.75,
    settled=True,
    requests=(400, 300),
    points=(),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[BeamSpec]:
    """What was to be measured; the answer is always the same."""
    specs: list[BeamSpec] = []

    def measured(spec: BeamSpec, _: object) -> BeamReport:
        specs.append(spec)
        described = msgspec.to_builtins(spec)
        return BeamReport(
            machine=MACHINE, shape={}, spec=described, cells=(), rates=(RATE,), selection=(CELL,)
        )

    monkeypatch.setattr(bench_beam, "bench_beam", measured)
    return specs


def run(*options: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "beam", *options])
    return int(ended.value.code or 0)


def test_only_rates(asked: list[BeamSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rates.json"
    chosen = ["--variants", "naive, full system", "--ids", "300", "--load-s", "9", "--target-ms", "3000"]
    assert run("--rates", *chosen, "--json", str(file)) == 0
    (spec,) = asked
    assert (spec.sids, spec.peer_widths, spec.scaling, spec.selection_widths) == ((), (), False, ())
    assert (spec.rates.variants, spec.rates.sids) == (("naive", "full system"), (300,))
    assert (spec.rates.limit_s, spec.rates.target_ms) == (9.0, 3000.0)
    out = capsys.readouterr().out
    assert "2.50 - 2.75" in out
    assert "400 / 300" in out
    assert msgspec.json.decode(file.read_bytes(), type=BeamReport).rates == (RATE,)


def test_only_single_rounds(asked: list[BeamSpec], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--selection") == 0
    (spec,) = asked
    assert (spec.sids, spec.peer_widths, spec.scaling, spec.rates.limit_s) == ((), (), False, 0.0)
    assert spec.selection_widths == (256, 512)
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "123,456" in line)
    assert row.split() == ["256", "2", "level", "123,456", "1.2", "5.5", "6.8", "9.0", "80.0", "30.0"]


def test_everything_and_the_quick_part_of_it(asked: list[BeamSpec]) -> None:
    assert run() == 0
    assert run("--quick") == 0
    whole, quick = asked
    assert (whole.rates.variants, whole.rates.sids) == (VARIANTS, (10_000, 1_500_000))
    assert whole.rates.limit_s > 0
    assert (quick.rates.limit_s, quick.selection_widths) == (0.0, ())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--quick", "--rates"], "--quick: only one of"),
        (["--rates", "--ids", "many"], "--ids: 'many'"),
        (["--rates", "--variants", "fast"], "--variants: 'fast'"),
        (["--rates", "--load-s", "-1"], "--load-s: -1"),
        (["--threads", "0"], "--threads: 0"),
    ],
)
def test_options_are_checked(
    asked: list[BeamSpec], capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert run(*options) == 2
    assert told in capsys.readouterr().err
    assert not asked
