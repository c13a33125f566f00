"""`relaygr bench beam --waits`: tables of what the scheduler adds."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from relaygr.bench.beam_waits import Times, WaitsReport, WaitsSpec, bench_waits
from relaygr.cli.report import write_json


def report_waits(spec: WaitsSpec, json: Path | None) -> None:
    """Measure, write and print."""
    with Console(stderr=True).status("measuring waits"):
        report = bench_waits(spec)
    write_json(json, report)
    _print(Console(), report)


def _print(console: Console, report: WaitsReport) -> None:
    spec, direct, scheduled = report.spec, report.direct, report.scheduled
    told = f"{spec['runs']} requests alone, width {spec['width']}, prompt {spec['prompt']}, {spec['dtype']}"
    console.print(f"{report.cpu}, {spec['threads']} threads of {report.cores} cores; {told}", highlight=False)
    table = Table("ms, P50 / P99", "direct", "scheduled", "added")
    for name, one, other, added in (
        ("until the first step", direct.wait_ms, scheduled.wait_ms, report.added_wait_ms),
        ("outside of steps", direct.outside_ms, scheduled.outside_ms, report.added_ms),
        ("all", direct.total_ms, scheduled.total_ms, scheduled.total_ms.over(direct.total_ms)),
    ):
        table.add_row(name, _ms(one), _ms(other), _ms(added))
    console.print(table)
    told = f"queued, of a client that asks again at once: {_ms(report.closed_wait_ms)} ms"
    console.print(told, highlight=False)
    loads = Table(
        "scheduling", "load", "1/s", "failed", "P99, ms", "longest free wait, ms", "limit", "longest step"
    )
    for cell in report.loaded:
        loads.add_row(
            cell.scheduling,
            f"{cell.load:g}",
            f"{cell.point.rate_per_s:.1f}",
            str(cell.point.failed),
            f"{cell.point.p99_ms:.1f}",
            f"{cell.longest_ms:.2f}",
            f"{cell.limit_ms:g}",
            f"{cell.longest_step_ms:.1f}",
        )
    console.print(loads)
    console.print(
        f"idle for {spec['idle_s']:g} s: {100 * report.idle_share:.2f} % of a core", highlight=False
    )


def _ms(times: Times) -> str:
    return f"{times.p50:.2f} / {times.p99:.2f}"
