"""`relaygr plan cache`: the published sizes, tables of tiers and links, and bad options."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from relaygr.cli.main import main
from relaygr.core.units import GIB
from relaygr.models.presets import preset
from relaygr.relay.calibration import Build, Calibration, Point
from relaygr.relay.latency import Coefficients, Pass
from relaygr.sim.cache.plan import CachePlan

FEW = ("--users", "100", "--policies", "lru", "--capacities", "5%")
LARGE = ("--layers", "8", "--heads", "4", "--qk-dim", "256", "--v-dim", "256")


def run(*arguments: object) -> int:
    try:
        main(["plan", "cache", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def said(printed: str) -> list[str]:
    return [" ".join(row) for row in rows(printed)]


def test_m35_the_published_figures_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--preset", "hstu-kuairand", "--device-bytes", "18.75GiB", *FEW) == 0
    out = capsys.readouterr().out
    assert "bytes per token 6 KiB" in said(out)
    assert "a user of 8,192 tokens 48 MiB" in said(out)
    assert "a million of them 45.78 TiB" in said(out)
    (device,) = (row for row in rows(out) if row[:1] == ["device"] and len(row) == 7)
    # 102,400 pages of 32.
    assert device[3:6] == ["32", "3,276,800", "400"]


def test_m35_the_published_figures_of_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    options = ("--max-length", 4096, "--t1-ms", 0.002, "--t2-ms", 5e-7, "--candidates", 256)
    link = ("--link-gb-s", 25 * GIB / 1e9, "--fix-ms", 0, "--json", file)
    assert run(*LARGE, *options, *link, *FEW) == 0
    out = capsys.readouterr().out
    assert "bytes per token 32 KiB" in said(out)
    assert "a user of 4,096 tokens 128 MiB" in said(out)
    assert "a million of them 122.1 TiB" in said(out)
    assert "staging, 4 buffers of 8,192 tokens 128 MiB" in said(out)
    (host,) = (row for row in rows(out) if row[:1] == ["host"] and "." in row[3])
    assert host[2:] == ["1", "13.42", "5.13", "4.56", "3,328"]
    plan = msgspec.json.decode(file.read_bytes(), type=CachePlan)
    assert plan.links[0].from_tokens == 1
    assert max(len(line) for line in out.splitlines() if line.startswith(" ")) <= 80


def test_users_footprint_ceilings_and_hits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "plan.json"
    sizes = ("--device-bytes", "64MiB", "--host-bytes", "128MiB", "--disk-bytes", "4GiB")
    assert run(*sizes, "--host-dtype", "int8", "--json", file, *FEW) == 0
    printed = capsys.readouterr().out
    plan = msgspec.json.decode(file.read_bytes(), type=CachePlan)
    stock = plan.curve.stock
    assert f"{stock.requests:,} requests of {stock.users:,} users" in printed
    assert "Ceilings of requests, tokens, cost" in printed
    hits = [point.replay.hits.all.cost_hit for point in plan.curve.points]
    assert [point.capacity for point in plan.curve.points] == ["5%", "device", "with host", "with disk"]
    assert hits[1] < hits[2] < hits[3] == pytest.approx(stock.ceiling.cost_hit)
    assert "warning: with disk: all" in printed
    assert "needs --calibration, or --t1-ms and --t2-ms" in printed
    assert plan.links == ()


def test_a_model_folder_a_trace_and_a_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(preset("hstu-tiny")))
    (tmp_path / "t.jsonl").write_text(
        "".join(f'{{"t_ms": {at}, "user": {at % 3}, "length": {100 + at}}}\n' for at in range(12))
    )
    known = Coefficients(t0_ms=1.0, t1_ms=0.01, t2_ms=4e-6, t_launch_ms=0.5)
    build = Build(model="00", dtype="fp32", kernel="test", threads=1, machine="test")
    points = (Point(shape=Pass(new_tokens=8, candidates=8), times_ms=(1.0,)),)
    (tmp_path / "c.json").write_bytes(
        msgspec.json.encode(Calibration(build=build, coefficients=known, points=points))
    )
    files = ("--model", tmp_path, "--trace", tmp_path / "t.jsonl", "--calibration", tmp_path / "c.json")
    assert run(*files, "--dtype", "fp32", "--capacities", "50%", "--disk-bytes", "1GiB") == 0
    printed = capsys.readouterr().out
    assert "bytes per token 1 KiB" in said(printed)
    assert "12 requests of 3 users" in printed
    links = [row for row in rows(printed) if len(row) == 7 and row[0] in ("host", "disk") and "." in row[3]]
    assert [row[:2] for row in links] == [["host", "4"], ["disk", "1"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset", "hstu"), "preset: 'hstu' is unknown"),
        (("--preset", "hstu-tiny", "--model", "x"), "--preset: it and --model exclude each other"),
        (("--preset", "hstu-tiny", "--layers", 2), "--preset: it and --layers exclude each other"),
        (("--layers", 2, "--heads", 2), "--qk-dim: is missing beside --layers"),
        ((*LARGE[:-1], 0), "--v-dim: 0 must be in [1, 65536]"),
        (("--device-bytes", "2GB"), "--device-bytes: '2GB' must be a number of bytes"),
        (("--device-bytes", "1KiB"), "--device-bytes: 1024 is less than 32 tokens, 196608"),
        (("--host-bytes", "1MiB"), "--host-bytes: 1048576 is less than 1024 tokens, 6291456"),
        (("--page-tokens", 0), "--page-tokens: 0 must be in [1, 1048576]"),
        (("--run-chunk-tokens", 1000), "--run-chunk-tokens: 1000 must be a multiple of page_tokens, 32"),
        (("--staging-tokens", 0), "--staging-tokens: 0 must be in"),
        (("--t1-ms", 1), "--t2-ms: is missing"),
        (("--t1-ms", 0, "--t2-ms", 1), "--t1-ms: 0.0 must be in (0, 1e6]"),
        (("--calibration", "x", "--t1-ms", 1), "--calibration: x and --t1-ms, --t2-ms exclude each other"),
        (("--calibration", "none.json"), "none.json"),
        (("--candidates", -1), "--candidates: -1 must be in [0, 1048576]"),
        (("--link-gb-s", 0), "--link-gb-s: 0.0 must be in [1e-06, 1e+06]"),
        (("--queue-ms", "nan"), "--queue-ms: nan must be in"),
        (("--policies", "best"), "--policies: 'best' is none of lru"),
        (("--capacities", "%"), "--capacities: '%' must be a percentage"),
        (("--users", 0), "--users: 0 must be in"),
        (("--json", "/"), "--json: / is a folder"),
    ],
)
def test_bad_options_are_named(
    options: tuple[object, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*options) == 2
    assert words in capsys.readouterr().err
