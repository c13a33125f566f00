"""`relaygr cache`: what it prints, the files it writes and reads, and bad options."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest

from relaygr.cache.policies import POLICIES, PolicySettings
from relaygr.cli.cache import PoliciesReport
from relaygr.cli.cache_options import KNOBS, check_knobs
from relaygr.cli.main import main
from relaygr.sim.cache.curve import Capacity, Curve, draw
from relaygr.sim.cache.generator import TraceSpec, generate

FEW = ("--users", "120")


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def read(file: Path) -> Curve:
    return msgspec.json.decode(file.read_bytes(), type=Curve)


def test_a_curve_with_its_ceiling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "curve.json"
    options = ("--policies", "lru, arc", "--capacities", "5%,64MiB", "--scan", 0.3, "--json", file)
    assert run("cache", "curve", *options, *FEW) == 0
    printed = capsys.readouterr().out
    curve = read(file)
    assert [(point.capacity, point.policy) for point in curve.points] == [
        ("5%", "lru"), ("5%", "arc"), ("64MiB", "lru"), ("64MiB", "arc"),
    ]  # fmt: skip
    top = curve.stock.ceiling
    for point in curve.points:
        hits = point.replay.hits.all
        pairs = ((hits.request_hit, top.request_hit), (hits.token_hit, top.token_hit))
        row = [f"{value:.4f}" for pair in (*pairs, (hits.cost_hit, top.cost_hit)) for value in pair]
        assert [point.capacity, point.policy, *row] in [line.split() for line in printed.splitlines()]
    assert curve.token_bytes == 6144
    assert f"{curve.stock.requests:,} requests of {curve.stock.users:,} users" in printed
    assert max(len(line) for line in printed.splitlines() if line.startswith(" ")) <= 80


def test_it_warns_when_all_users_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "curve", "--capacities", "1TiB", *FEW) == 0
    assert "warning: 1TiB: all " in capsys.readouterr().out


def test_a_written_trace_gives_the_same_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ("--edits", 0.1, "--slide", 0.25, "--max-length", 2000, *FEW)
    assert run("cache", "trace", "--out", tmp_path / "day.jsonl.gz", *made) == 0
    assert "requests of" in capsys.readouterr().out
    assert run("cache", "curve", "--json", tmp_path / "a.json", *made) == 0
    assert run("cache", "curve", "--json", tmp_path / "b.json", "--trace", tmp_path / "day.jsonl.gz") == 0
    one, other = read(tmp_path / "a.json"), read(tmp_path / "b.json")
    assert [point.replay for point in one.points] == [point.replay for point in other.points]
    assert one.stock.ceiling == other.stock.ceiling
    assert other.stock.name == "day.jsonl.gz"


def test_a_log_of_events_becomes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    rows = "".join(f"{user},{at},{100 * at + user}\n" for at in range(40) for user in range(3))
    log.write_text(f"user_id,item_id,timestamp\n{rows}")
    out = tmp_path / "requests.jsonl"
    options = ("--trace", log, "--events-per-request", 5, "--max-length", 30)
    assert run("cache", "trace", "--out", out, *options) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["length"] for line in lines if line["user"] == lines[0]["user"]] == [
        5, 10, 15, 20, 25, 30, 27,
    ]  # fmt: skip
    assert run("cache", "curve", "--trace", out, "--capacities", "50%") == 0
    assert "21 requests of 3 users" in capsys.readouterr().out


def test_all_policies_and_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.json"
    status = run("cache", "policies", "--seeds", 2, "--seed", 5, "--json", file, "--users", 25)
    printed, told = capsys.readouterr()
    assert "lru at 2%, 1 of 48" in told
    assert "tlru at 25%, 48 of 48" in told
    report = msgspec.json.decode(file.read_bytes(), type=PoliciesReport)
    assert [one.spec.seed for one in report.comparisons] == [5, 6]
    for policy in POLICIES:
        rows = [line.split() for line in printed.splitlines() if line.split()[:1] == [policy]]
        assert len(rows) == 4  # two seeds, without and with one-time users
        assert all(len(row) == 6 for row in rows)
    assert status == (0 if all(one.passes for one in report.comparisons) else 1)
    assert max(len(line) for line in printed.splitlines() if line.startswith(" ")) <= 80


def test_knobs_of_policies(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, knobs in zip(files, ((), ("--knob.freq-cap", 1, "--knob.first-touch-weight", 1)), strict=True):
        assert run("cache", "curve", "--policies", "gd_cost", "--json", file, *knobs, *FEW) == 0
    one, other = map(read, files)
    assert (one.settings["freq_cap"], other.settings["freq_cap"]) == (4, 1)
    assert one.points[0].replay != other.points[0].replay


@pytest.mark.parametrize("end", ["low", "high"])
def test_every_knob_has_limits_and_runs_at_them(end: str) -> None:
    assert set(KNOBS) == {one.name for one in fields(PolicySettings)}
    trace = generate(TraceSpec(users=25))
    for name, limit in KNOBS.items():
        whole = isinstance(getattr(PolicySettings(), name), int)
        value = getattr(limit, end) or limit.open_low * 1e-9
        knobs = check_knobs(replace(PolicySettings(), **{name: int(value) if whole else value}))
        draw(trace, POLICIES, [Capacity("10%", share=0.1)], settings=knobs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("curve", "--policies", "lru,best"), "--policies: 'best' is none of lru"),
        (("curve", "--policies", ","), "--policies: ',' names nothing"),
        (("curve", "--policies", "lru,lru"), "--policies: 'lru' stands more than once"),
        (("curve", "--capacities", "0%"), "--capacities: '0%' must be in (0%, 1000%]"),
        (("curve", "--capacities", "x%"), "--capacities: 'x%' must be a percentage"),
        (("curve", "--capacities", "nan%"), "--capacities: 'nan%' must be in"),
        (("curve", "--capacities", "2GB"), "--capacities: '2GB' must be a number of bytes"),
        (
            ("curve", "--users", 50, "--capacities", "100"),
            "--capacities: '100' is 100 bytes, a page takes 6144",
        ),
        (("curve", "--token-bytes", 0), "--token-bytes: 0 must be in [1, 1073741824]"),
        (("curve", "--page-tokens", -1), "--page-tokens: -1 must be in [1, 1073741824]"),
        (("curve", "--users", 0), "--users: 0 must be in [1, 10000000]"),
        (("curve", "--burst-factor", 20), "--burst-share: 0.1 must be in (0, 1 / burst_factor]"),
        (("curve", "--t1", -1), "--t1: -1.0 must be in [0, 1e9]"),
        (("curve", "--trace", "none.jsonl"), "none.jsonl"),
        (("curve", "--trace", "none.jsonl", "--users", 5), "--trace: none.jsonl and --users exclude"),
        (("curve", "--trace", "x", "--events-per-request", 0), "--events-per-request: 0 must be in"),
        (("curve", "--json", "/"), "--json: / is a folder"),
        (("curve", "--knob.freq-cap", 0), "--knob.freq-cap: 0 must be in [1, 1000]"),
        (("curve", "--knob.ghost-halve-ops", 0), "--knob.ghost-halve-ops: 0 must be in"),
        (("policies", "--knob.small-share", 1.5), "--knob.small-share: 1.5 must be in [0, 1]"),
        (("policies", "--seeds", 0), "--seeds: 0 must be in [1, 1000]"),
        (("policies", "--policies", "lru,arc"), "--policies: 'gd_cost' is missing"),
        (("curve", "--users", 1, "--sessions-per-day", 1e-6), "--users: 1: none of them has a session"),
        (("policies", "--users", 1, "--sessions-per-day", 1e-6), "--users: 1: none of them has a session"),
        (("policies", "--users", 1_000_000, "--session-requests", 6.5), "--users: 1000000 with"),
        (("policies", "--seeds", 2, "--seed", 2**63 - 1, "--users", 25), "--seed: 9223372036854775808 must"),
        (("curve", "--t1", 0, "--t2", 0), "--t1: 0.0 must be positive where t2 is 0.0"),
        (("policies", "--seed", -1), "--seed: -1 must be in [0, 2^63)"),
        (("trace", "--out", "/"), "--out: / is a folder"),
    ],
)
def test_bad_options_are_named(
    options: tuple[object, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cache", *options) == 2
    assert said in capsys.readouterr().err


def test_replays_load_no_torch() -> None:
    code = "import sys, relaygr.cli.cache; print([m for m in ('torch', 'starlette') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout.replace("'", '"')) == []
