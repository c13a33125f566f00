"""`relaygr bench gateway`."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.gateway import GatewayReport, GatewaySpec, bench_gateway
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file


def gateway(
    *,
    json: Path | None = None,
    requests: int = GatewaySpec().requests,
    candidates: int = GatewaySpec().candidates,
) -> None:
    """Time rankings of an instance that computes nothing, directly and through a gateway; and decisions.

    Parameters
    ----------
    json: Path | None
        Also write the report to this file.
    requests: int
        Rankings on each of the two ways, one at a time.
    candidates: int
        Of each ranking.
    """
    spec = GatewaySpec(requests, candidates)
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_gateway(spec, lambda text: status.update(escape(text)))
    write_json(json, report)
    _print(Console(), report)


def _print(console: Console, report: GatewayReport) -> None:
    console.print(f"{report.cpu}, {report.cores} cores, load {report.load}", soft_wrap=True, markup=False)
    table = Table(title=f"{report.requests} rankings, one at a time, ms", box=box.SIMPLE_HEAD)
    for name in ("way", "median", "p99"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for name, way in (("direct", report.direct), ("gateway", report.gateway)):
        table.add_row(name, f"{way.median_ms:.3f}", f"{way.p99_ms:.3f}")
    console.print(table)
    sizes = f"{report.request_bytes} bytes there, {report.answer_bytes} back"
    console.print(f"the gateway adds {report.added_ms:.3f} ms at the median; {sizes}", markup=False)
    table = Table(title="one decision, microseconds of processor time", box=box.SIMPLE_HEAD)
    for name in ("hash", "members", "new user", "placed user"):
        table.add_column(name, justify="left" if name == "hash" else "right")
    for one in report.decisions:
        table.add_row(one.hash, str(one.members), f"{one.new_us:.1f}", f"{one.placed_us:.1f}")
    console.print(table)
