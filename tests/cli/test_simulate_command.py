"""`relaygr simulate`: what it prints, the files it writes, and bad options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from relaygr.cli.main import main
from relaygr.relay.calibration import Build, Calibration, Point
from relaygr.relay.latency import Coefficients, Pass
from relaygr.sim.report import LoadReport, Report, SizeReport

FEW = ("--requests", "80", "--device", "64MiB", "--host", "64MiB")


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    coefficients = Coefficients(t0_ms=1.0, t1_ms=0.01, t2_ms=4e-6, t_launch_ms=0.5)
    shapes = [Pass(new_tokens=n, candidates=128) for n in (128, 512, 2048)]
    shapes += [Pass(new_tokens=n, chunk=True) for n in (128, 512)]
    points = tuple(
        Point(shape=one, times_ms=tuple(coefficients.batch_ms([one]) * k for k in (0.9, 1.0, 1.3)))
        for one in shapes
    )
    build = Build(model="00", dtype="fp32", kernel="test", threads=1, machine="test")
    file = tmp_path / "calibration.json"
    file.write_bytes(msgspec.json.encode(Calibration(build=build, coefficients=coefficients, points=points)))
    return file


def test_one_load_with_every_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "load.json"
    assert run("simulate", "load", "--rate", 5, "--length", 3072, "--json", file, *FEW) == 0
    printed = capsys.readouterr().out
    report = msgspec.json.decode(file.read_bytes(), type=LoadReport)
    assert report.traffic.rate == 5
    assert report.traffic.length == 3072
    for name, result in zip(report.variants, report.results, strict=True):
        assert result.requests == 80
        (line,) = (line for line in printed.splitlines() if line.split()[:1] == [name])
        assert f"{result.good_share:.2%}" in line
    assert "inline_full: trigger none 80" in printed


def test_some_variants_on_a_measured_machine(calibration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--calibration", calibration, "--scatter", "--overhead-ms", 1, "--rank-ms", 80)
    names = ("--variants", "inline_full", "--variants", "relay_full")
    assert run("simulate", "load", "--rate", 10, *names, *options, *FEW) == 0
    printed = capsys.readouterr().out
    assert "a chunk 0.5 in place of 1;" in printed
    assert "rank budget 80.0 ms" in printed
    assert "relay_no_trigger" not in printed


def test_instances_that_a_traffic_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "size.json"
    options = ("--regime", "first_touch", "--length", 3072, "--json", file)
    assert run("simulate", "size", "--rate", 30, *options, *FEW) == 0
    printed = capsys.readouterr().out
    report = msgspec.json.decode(file.read_bytes(), type=SizeReport)
    for need in report.needs:
        (line,) = (line for line in printed.splitlines() if line.split()[:1] == [need.variant])
        assert line.split()[1] == str(need.instances)
    assert run("simulate", "size", "--rate", 200, "--most", 2, *FEW) == 1
    assert "> 2" in capsys.readouterr().out


def test_everything_quickly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    outputs = ("--json", tmp_path / "new" / "all.json", "--svg", tmp_path / "new" / "all.svg")
    few = ("--requests", 30, "--device", "64MiB", "--host", "64MiB", "--chunk-taus", 0.25)
    assert run("simulate", "--quick", "--instances", 2, *outputs, *few) == 0
    printed = capsys.readouterr().out
    report = msgspec.json.decode((tmp_path / "new" / "all.json").read_bytes(), type=Report)
    assert (tmp_path / "new" / "all.svg").read_text(encoding="utf-8").startswith("<svg")
    for sweep in (*report.ablations, *report.sweeps):
        assert f"{sweep.name}, " in printed
    assert "3.6x rate" in printed
    assert max(len(line) for line in printed.splitlines() if line.startswith(" ")) <= 80


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("load", "--rate", 0), "traffic.rate"),
        (("load", "--rate", 5, "--variants", "best"), "'best' is not one of"),
        (("load", "--rate", 5, "--device", "lots"), "--device"),
        (("load", "--rate", 5, "--device", "1"), "world.device_bytes"),
        (("load", "--rate", 5, "--scatter"), "--calibration"),
        (("load", "--rate", 5, "--calibration", "none.json"), "none.json"),
        (("load", "--rate", 5, "--regime", "popular"), "traffic.users"),
        (("load", "--rate", 5, "--u-max", 2), "trigger.u_max"),
        (("size", "--rate", 5, "--seeds", 0), "--seeds"),
        (("--json", "/"), "--json"),
    ],
)
def test_bad_options_are_named(
    options: tuple[object, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("simulate", *options) == 2
    assert said in capsys.readouterr().err


def test_the_simulator_loads_no_torch() -> None:
    code = "import sys, relaygr.cli.simulate; print([m for m in ('torch', 'starlette') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout.replace("'", '"')) == []
