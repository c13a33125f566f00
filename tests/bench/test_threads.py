"""`bench threads`: every cell is there, the busy process ends, failures and bad options are named."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from relaygr.bench import threads
from relaygr.bench.latency import Latency, LatencyJob, busy_process
from relaygr.bench.machine import usable_cores
from relaygr.bench.threads import ThreadsReport, recommend
from relaygr.cli.main import main
from relaygr.core.errors import BackendError


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "threads.json"
    options = ["--preset", "hstu-tiny", "--history", "64", "--candidates", "8", "--dtype", "fp32"]
    assert run("bench", "threads", *options, "--seconds", "0.05", "--json", file) == 0
    printed = capsys.readouterr().out
    report = msgspec.json.decode(file.read_bytes(), type=ThreadsReport)
    cores = usable_cores()
    counts = (1, cores) if cores > 1 else (1,)
    assert [(c.wait_policy, c.threads, c.busy) for c in report.cells] == [
        (policy, count, busy)
        for policy in ("default", "passive")
        for count in counts
        for busy in (False, True)
    ]
    for cell in report.cells:
        assert 0 < cell.hit_p50_ms <= cell.hit_p99_ms
        assert 0 < cell.prefill_p50_ms <= cell.prefill_p99_ms
        assert cell.samples >= 2
        assert cell.dtype == "fp32"
    assert report.recommendation in printed


def cell(threads: int, busy: bool, policy: str, p99_ms: float) -> Latency:
    return Latency(
        threads=threads,
        busy=busy,
        wait_policy=policy,
        dtype="fp32",
        route="aten",
        hit_p50_ms=p99_ms,
        hit_p99_ms=p99_ms,
        prefill_p50_ms=1.0,
        prefill_p99_ms=1.0,
        samples=2,
    )


def test_the_recommendation_takes_the_lowest_tail() -> None:
    cells = [
        cell(1, False, "default", 20.0),
        cell(1, True, "default", 21.0),
        cell(2, False, "default", 10.0),
        cell(2, True, "default", 400.0),
        cell(2, False, "passive", 11.0),
        cell(2, True, "passive", 30.0),
    ]
    text = recommend(cells, 2)
    assert "to itself: 2 threads, wait policy default, hit P99 10.0 ms" in text
    assert "busy process: 1 thread, wait policy default, hit P99 21.0 ms" in text
    assert "worst setting, 2 threads, wait policy default, takes 400.0 ms" in text
    one = recommend([cell(1, False, "default", 2.0), cell(1, True, "default", 3.0)], 1)
    assert "worst" not in one


def test_the_busy_process_ends_with_the_block() -> None:
    start = time.monotonic()
    with busy_process(limit_s=60):
        pass
    assert time.monotonic() - start < 30


def test_a_child_that_fails_is_named() -> None:
    job = LatencyJob(
        preset="no-such", history=64, candidates=8, dtype="fp32", threads=(1,), cell_s=0.01, seed=0
    )
    with pytest.raises(BackendError, match=r"wait policy passive: .* failed: .*preset: 'no-such'"):
        threads._child(job, "passive")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--history", "16", "--history: 16 is outside [17, 4096]"),
        ("--candidates", "0", "--candidates: 0 is outside [1, 16384]"),
        ("--seconds", "0", "--seconds: 0.0 is outside [0.01, 60]"),
        ("--dtype", "fp64", "--dtype: 'fp64' is not one of auto, fp32, bf16"),
    ],
)
def test_bad_options(option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "threads", option, value) == 2
    assert words in capsys.readouterr().err
