"""What `relaygr bench serve` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from relaygr.bench.serve_report import LoadResult, Search, ServeReport
from relaygr.bench.soak_report import SoakReport
from relaygr.core.units import MIB

if TYPE_CHECKING:
    # At run time it needs an extra.
    from relaygr.bench.serve_quick import QuickReport


def print_report(console: Console, report: ServeReport) -> int:
    """Print it; 1 if a request failed or no rate passes."""
    code = 0
    if report.load is not None:
        _print_load(console, report.load, report.deadline_ms)
        code = 1 if report.load.errors else 0
    if report.search is not None:
        _print_search(console, report.search)
        code = 0 if report.search.best_rps is not None else 1
    if report.users_left:
        console.print(f"{report.users_left} users of the load could not be deleted")
    return code


def print_quick(console: Console, report: QuickReport) -> None:
    table = _table(f"{report.preset}, {report.dtype}, {report.history}/{report.candidates}: milliseconds")
    for name in (
        "P50\nalone",
        "P50\nbeside",
        "P99\nalone",
        "P99\nbeside",
        "step",
        "share of\nsteps",
        "ratio",
    ):
        table.add_column(name, justify="right")
    for pair in report.interference.pairs:
        times = (pair.p50_without_ms, pair.p50_with_ms, pair.p99_without_ms, pair.p99_with_ms, pair.chunk_ms)
        table.add_row(*(f"{ms:.1f}" for ms in times), f"{pair.saturation:.0%}", f"{pair.ratio:.2f}")
    console.print(table)
    console.print(
        f"HTTP adds {report.overhead_p50_ms:.2f} ms to {report.overhead.engine_p50_ms:.2f} ms (median of "
        f"{report.overhead.samples} pairs of calls); pre-inference multiplies the P99 by "
        f"{report.interference_ratio:.2f}, a step of {report.chunk_ms:.1f} ms aside (median of "
        f"{len(report.interference.pairs)}); {report.errors} errors",
        soft_wrap=True,
    )


def print_soak(console: Console, report: SoakReport) -> None:
    table = _table(f"{report.requests} requests in {report.seconds:.0f} s")
    table.add_column("what")
    table.add_column("count", justify="right")
    for name, count in sorted(report.counts.items()):
        table.add_row(name, str(count))
    console.print(table)
    grown = "not known" if (more := report.grown_bytes) is None else f"{more / MIB:+.1f} MiB"
    console.print(
        f"failed well-formed requests: {report.failed}; wrong answers: {report.wrong} ({report.checked} "
        f"rankings scored again here); reloads: {report.reloads}; memory of the server: {grown}; leases, "
        f"pinned bytes: {report.before.leases}, {report.before.pinned_bytes} before, {report.after.leases}, "
        f"{report.after.pinned_bytes} after",
        soft_wrap=True,
    )
    for violation in report.violations:
        console.print(f"violation: {violation}", soft_wrap=True, markup=False)


def _print_load(console: Console, load: LoadResult, deadline_ms: float) -> None:
    table = _table(f"{load.rate:g} visits/s for {load.seconds:g} s: milliseconds from the schedule")
    table.add_column("stage")
    table.add_column("path")
    for name in ("count", "mean", "P50", "P90", "P99", "P99.9", "max"):
        table.add_column(name, justify="right")
    for row in load.latencies:
        times = (row.mean_ms, row.p50_ms, row.p90_ms, row.p99_ms, row.p999_ms, row.max_ms)
        table.add_row(row.stage, row.path, str(row.count), *(f"{ms:.1f}" for ms in times))
    console.print(table)
    failures = ", ".join(f"{f.stage} {f.what}: {f.count}" for f in load.failures) or "none"
    console.print(
        f"good within {deadline_ms:g} ms: {load.good} of {load.visits} ({load.good_share:.2%}), "
        f"{load.goodput_rps:.1f}/s; failures: {failures}; sent late: {load.late_sends} "
        f"(P99 {load.send_lag_p99_ms:.1f} ms); history tokens from the cache: {load.tokens_cached_share:.1%}",
        soft_wrap=True,
    )


def _print_search(console: Console, search: Search) -> None:
    table = _table(f"{search.share:.1%} of the visits within {search.slo_ms:g} ms")
    for name in ("visits/s", "visits", "good", "P50", "P99", "missed", ""):
        table.add_column(name, justify="right")
    for probe in search.probes:
        row = probe.latency("rank")
        times = ("-", "-") if row is None else (f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}")
        good = probe.visits > 0 and probe.good >= search.share * probe.visits
        numbers = (f"{probe.rate:.3g}", f"{probe.visits}", f"{probe.good_share:.2%}", *times)
        table.add_row(*numbers, f"{probe.missed}", "passes" if good else "fails")
    console.print(table)
    best = "no rate passes" if search.best_rps is None else f"highest passing rate: {search.best_rps:.3g}/s"
    console.print(f"{best} ({search.ended})")


def _table(title: str) -> Table:
    """Fits 80 columns, the width rich takes where there is no terminal."""
    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
