"""`relaygr bench one-shot`: what the distilled generator keeps of a beam's gain, and what it costs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from relaygr.bench.one_shot import OneShotReport, bench_one_shot
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file


def one_shot(
    *,
    json: Path | None = None,
    lists: int = 8000,
    pools: int = 1500,
    requests: int = 600,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Distil `one_shot` in the simulated world and compare it with a beam of 4 lists over the top 30.

    Parameters
    ----------
    json: Path | None
        Write the report here as well.
    lists: int
        Logged lists that the step model is trained on.
    pools: int
        Requests that the generator is distilled on.
    requests: int
        Requests that both are measured on.
    seed: int
        Of the world.
    quick: bool
        800 lists, 250 pools, 150 requests.
    """
    if json is not None:
        check_file("--json", json)
    if quick:
        lists, pools, requests = 800, 250, 150
    errors = Console(stderr=True)
    report = bench_one_shot(lists, pools, requests, seed, lambda what: errors.print(what, markup=False))
    Console().print(_table(report))
    if json is not None:
        write_json(json, report)


def _table(report: OneShotReport) -> Table:
    table = Table(title=f"{report.requests:,} requests, step model of {report.lists:,} lists")
    for name in ("", "beam 4", "one_shot", "share"):
        table.add_column(name, justify="right" if name else "left")
    gains = f"{report.beam_gain:+.1f}", f"{report.gain:+.1f}", f"{100 * report.gain_share:.0f} %"
    times = f"{report.beam_ms:.2f}", f"{report.ms:.2f}", f"{100 * report.ms_share:.0f} %"
    work = f"{report.beam_work:,}", f"{report.work:,}", f"{100 * report.work_share:.1f} %"
    table.add_row("true gain over pointwise, %", *gains)
    table.add_row("processor time a list, P50, ms", *times)
    table.add_row("multiply-adds a list", *work)
    return table
