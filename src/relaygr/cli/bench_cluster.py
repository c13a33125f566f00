"""`relaygr bench cluster`."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.cluster import ClusterReport, ClusterSpec, bench_cluster
from relaygr.cli.cluster_client import ClusterClient
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file


def cluster(
    *,
    json: Path | None = None,
    quick: bool = False,
    shape: str = ClusterSpec().shape,
    replicas: int = ClusterSpec().replicas,
    users: int | None = None,
    rate: float | None = None,
    phase_s: float | None = None,
) -> None:
    """Load replicas on this machine while one is killed, one is added and the model changes.

    Parameters
    ----------
    json: Path | None
        Also write the report to this file.
    quick: bool
        Fewer users (100), a lower rate (15) and shorter phases (6 s), where not given.
    shape: str
        What is in front: `gateway`, `peers` or `ray`.
    replicas: int
        How many run from the start.
    users: int | None
        Drawn at random, 1,000 by default.
    rate: float | None
        Visits of two laps a second, open loop, 30 by default.
    phase_s: float | None
        Length of each of the five phases, 20 s by default.
    """
    spec = ClusterSpec(
        shape=shape,
        replicas=replicas,
        users=users if users is not None else 100 if quick else ClusterSpec().users,
        rate=rate if rate is not None else 15.0 if quick else ClusterSpec().rate,
        phase_s=phase_s if phase_s is not None else 6.0 if quick else ClusterSpec().phase_s,
    )
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_cluster(spec, ClusterClient, lambda text: status.update(escape(text)))
    write_json(json, report)
    _print(Console(), report)


def _print(console: Console, report: ClusterReport) -> None:
    console.print(f"{report.cpu}, {report.cores} cores, load {report.load}", soft_wrap=True, markup=False)
    title = f"{report.replicas} replicas, {report.shape}, {report.users} users, {report.rate:g} visits/s"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in ("phase", "visits", "failed", "hung", "one replica", "hit", "P50 ms"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for one in report.phases:
        shares = [_share(one.affinity_share), _share(one.hit_share)]
        table.add_row(one.name, str(one.visits), str(one.failed), str(one.hung), *shares, f"{one.p50_ms:.1f}")
    console.print(table)
    if report.hop_ms is not None:
        console.print(f"what is in front adds {report.hop_ms:.1f} ms at the median")
    console.print(f"moved after one is added: {_share(report.moved_share_after_add)} of the users")
    checked = f"{report.mixed_versions} of {report.checked} rankings differ from their version's scores"
    console.print(f"update: {report.failed_in_update} failed, {checked}")
    for line in report.wrong:
        console.print(line, markup=False)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
