"""How `relaygr bench cluster` prints its report."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from relaygr.bench.cluster_report import ClusterReport, ScaleReport, ShapeReport

RETRIES = "clients try a lap up to 3 times within its deadline, after a broken connection or a 503"


def print_cluster(console: Console, report: ClusterReport) -> None:
    """Everything measured, and what was left out."""
    console.print(f"{report.cpu}, {report.cores} cores, load {report.load}", soft_wrap=True, markup=False)
    if report.shapes:
        console.print(
            f"{report.replicas} replicas, {report.users} users, {report.rate:g} visits/s; {RETRIES}",
            soft_wrap=True,
            markup=False,
        )
    for shape in report.shapes:
        _print_shape(console, shape)
    for name, why in report.skipped.items():
        console.print(f"{name}: skipped: {why}", soft_wrap=True, markup=False)
    if report.scale is not None:
        _print_scale(console, report.scale, report.cores)


def _print_shape(console: Console, report: ShapeReport) -> None:
    table = Table(title=f"{report.shape}: {report.policy}", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("phase", "visits", "failed", "hung", "affinity", "hit", "P50 ms", "P99 ms", "longest"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for one in report.phases:
        shares = [_share(one.affinity_share), _share(one.hit_share)]
        times = [f"{value:.1f}" for value in (one.p50_ms, one.p99_ms, one.longest_ms)]
        table.add_row(one.name, str(one.visits), str(one.failed), str(one.hung), *shares, *times)
    console.print(table)
    lines = []
    if report.hop_ms is not None:
        lines.append(f"it adds {report.hop_ms:.1f} ms to a ranking by one server alone, at the median")
    lines.append(f"all is as before {report.unsettled_after_kill_s:.1f} s after the kill")
    moved, wanted = _share(report.moved_share_after_add), _share(report.moved_share_wanted)
    lines.append(f"moved after one is added: {moved} of the users, {wanted} if evenly")
    wrong = f"{report.mixed_versions} of {report.checked} rankings differ from their version's scores"
    lines.append(f"update: {report.failed_in_update} failed, {wrong}")
    for line in (*lines, *report.wrong):
        console.print(line, soft_wrap=True, markup=False)


def _print_scale(console: Console, report: ScaleReport, cores: int) -> None:
    console.print(
        f"scale: {report.shape}, {report.preset}, {report.events} events and {report.candidates} candidates, "
        f"each visit a new user; {report.threads} of {cores} cores to a replica, {report.clients} visits on "
        f"their way to each; medians of {report.rounds} rounds of {report.window_s:g} s; engines: as many, "
        "without HTTP and router",
        soft_wrap=True,
        markup=False,
    )
    table = Table(box=box.SIMPLE_HEAD)
    names = ("replicas", "per s", "engines", "of them", "times", "per replica", "affinity", "failed")
    for name in (*names, "P50 ms", "P99 ms"):
        table.add_column(name, justify="right")
    for one in report.points:
        shares = [f"{one.speed_up:.2f}", _share(one.efficiency), _share(one.affinity_share)]
        row = [str(one.replicas), f"{one.rps:.1f}", f"{one.engines_rps:.1f}", _share(one.of_machine), *shares]
        table.add_row(*row, str(one.failed), f"{one.p50_ms:.0f}", f"{one.p99_ms:.0f}")
    console.print(table)
    for line in (report.note, *(f"{count}: skipped: {why}" for count, why in report.skipped.items())):
        if line:
            console.print(line, soft_wrap=True, markup=False)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
