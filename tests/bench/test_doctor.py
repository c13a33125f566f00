"""`doctor`: it runs, checks the kernel, reads limits, warns where settings hurt, and exits accordingly."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from relaygr.bench import doctor, machine
from relaygr.bench.doctor import (
    DoctorReport,
    ThreadReport,
    cgroup_cpu_limit,
    check_kernel,
    examine,
    thread_report,
    thread_warnings,
)
from relaygr.cli import doctor as command
from relaygr.cli.main import main
from relaygr.core.errors import BackendError
from relaygr.kernels.select import Choice


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_COPY_BYTES", 1 << 16)
    monkeypatch.setattr(command, "examine", lambda: examine(matrix_size=64))


@pytest.mark.usefixtures("small")
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "doctor.json"
    assert run("doctor", "--json", file) == 0
    printed = capsys.readouterr().out
    report = msgspec.json.decode(file.read_bytes(), type=DoctorReport)
    assert report.healthy
    assert report.kernel.kernel == "cpu"
    assert "fastest of" in report.kernel.reason
    assert report.machine.matrix_gflops.fp32 is not None
    assert report.machine.matrix_gflops.bf16 is not None
    assert report.machine.copy_gb_s > 0
    assert report.machine.features
    assert "passed, relative error" in printed
    assert report.machine.torch in printed


@pytest.mark.usefixtures("small")
def test_a_wrong_kernel_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_relative_error", lambda choice: 0.5)
    assert run("doctor") == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "relative error 0.5 is above" in printed


def test_no_kernel_is_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Choice:
        raise BackendError("no matrix route computes auto")

    monkeypatch.setattr(doctor, "choose", refuse)
    assert check_kernel().problem == "no matrix route computes auto"


def test_not_a_number_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_relative_error", lambda choice: float("nan"))
    assert "nan is above" in check_kernel().problem


@pytest.mark.usefixtures("small")
def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json", tmp_path) == 2
    assert "--json:" in capsys.readouterr().err


def report_of(intra_op: int, cores: int, limit: float | None, **omp: str) -> ThreadReport:
    return ThreadReport(intra_op=intra_op, inter_op=1, cores=cores, cpu_limit=limit, omp=omp)


@pytest.mark.parametrize(
    ("threads", "words"),
    [
        (report_of(2, 2, None), []),
        (report_of(2, 2, 2.0, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="2"), []),
        (report_of(4, 2, None), ["torch uses 4 threads on 2 cores; set engine.threads to at most 2"]),
        (report_of(2, 2, 0.5), ["the cgroup allows 0.5 cores, torch uses 2", "set engine.threads to 1"]),
        (report_of(2, 2, None, OMP_WAIT_POLICY="ACTIVE"), ["OMP_WAIT_POLICY=active"]),
        (report_of(2, 2, None, OMP_NUM_THREADS="8"), ["OMP_NUM_THREADS=8 is more than the 2 cores"]),
        (report_of(2, 2, None, MKL_NUM_THREADS="3"), ["MKL_NUM_THREADS=3"]),
    ],
)
def test_warnings(threads: ThreadReport, words: list[str]) -> None:
    found = thread_warnings(threads)
    assert len(found) == min(len(words), 1)
    for word in words:
        assert word in found[0]


def test_only_thread_variables_are_reported() -> None:
    environment = {"OMP_NUM_THREADS": "1", "HOME": "/x", "OMP_WAIT_POLICY": "passive"}
    found = thread_report(environment).omp
    assert found == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def test_cgroup_limits(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    assert cgroup_cpu_limit(tmp_path / "none", membership) is None
    membership.write_text("4:cpu,cpuacct:/job\n0::/outer/inner\n")
    inner = tmp_path / "fs" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    assert cgroup_cpu_limit(tmp_path / "fs", membership) is None
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    assert cgroup_cpu_limit(tmp_path / "fs", membership) == 1.5
    old = tmp_path / "fs" / "cpu" / "job"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("50000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_cpu_limit(tmp_path / "fs", membership) == 0.5
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    assert cgroup_cpu_limit(tmp_path / "fs", membership) == 1.5
