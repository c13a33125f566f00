"""`relaygr doctor`: print what this machine is and what would slow it down."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.doctor import DoctorReport, examine
from relaygr.bench.machine import RouteGflops
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.units import format_bytes


def doctor(*, json: Path | None = None) -> int:
    """Examine this machine: processor, memory, matrix rates, threads and the kernel that was chosen.

    Exit status 1 if the kernel does not compute what it should, else 0.

    Parameters
    ----------
    json: Path | None
        Also write the report to this file.
    """
    check_file("--json", json)
    with Console(stderr=True).status("measuring"):
        report = examine()
    write_json(json, report)
    console = Console()
    console.print(_table(report))
    for warning in report.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if not report.healthy:
        console.print(f"kernel: {report.kernel.problem}", style="bold red", markup=False, soft_wrap=True)
    return 0 if report.healthy else 1


def _table(report: DoctorReport) -> Table:
    machine, kernel, threads = report.machine, report.kernel, report.threads
    table = Table("what", "value", title="relaygr doctor")
    rows = [
        ("python, torch", f"{report.implementation} {machine.python}, torch {machine.torch}"),
        ("system", machine.system),
        ("processor", f"{machine.cpu}, {machine.cores} cores"),
        ("features", ", ".join(machine.features)),
        ("memory", f"{_bytes(machine.memory_bytes)}, available {_bytes(report.memory_available_bytes)}"),
        ("kernel, route, dtype", ", ".join(filter(None, (kernel.kernel, kernel.route, kernel.dtype)))),
        ("reason", kernel.reason),
        ("kernel self-check", _check(report)),
        ("matrix rate, fp32", _rate(machine.matrix_gflops_by_route.fp32)),
        ("matrix rate, bf16", _rate(machine.matrix_gflops_by_route.bf16)),
        ("copy bandwidth", f"{machine.copy_gb_s:.1f} GB/s"),
        ("torch threads", f"{threads.intra_op} intra-op, {threads.inter_op} inter-op"),
        ("cgroup CPU limit", "none" if threads.cpu_limit is None else f"{threads.cpu_limit:g} cores"),
        ("OpenMP variables", ", ".join(f"{k}={v}" for k, v in threads.omp.items()) or "none set"),
    ]
    for label, value in rows:
        table.add_row(label, escape(value))
    return table


def _check(report: DoctorReport) -> str:
    error = report.kernel.relative_error
    verdict = "passed" if report.healthy else "FAILED"
    return verdict if error is None else f"{verdict}, relative error {error:.1e}"


def _rate(rate: RouteGflops | None) -> str:
    if rate is None:
        return "not measured"
    onednn = "" if rate.onednn is None else f", oneDNN {rate.onednn:.0f}"
    return f"torch.mm {rate.aten:.0f}{onednn} GFLOP/s"


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)
