"""`relaygr verify`: prove on own weights and events that caching, batching and resuming change no score."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from relaygr.bench.verify import VerifyOptions, VerifyReport, verify
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.data.dataset import open_events


def verify_command(
    *,
    model: Path,
    events: Path,
    users: int = 32,
    candidates: int = 64,
    dtype: Literal["fp32", "bf16", "auto"] = "fp32",
    seed: int = 0,
    max_history: int = 0,
    threads: int = 1,
    bitwise: bool = False,
    json: Path | None = None,
) -> int:
    """Check that every way of serving a request gives the same scores; exit status 1 if not.

    Parameters
    ----------
    model: Path
        Folder of a trained ranker.
    events: Path
        Folder of a dataset.
    users: int
        Users to sample, half of them the ones with the longest histories.
    candidates: int
        Candidates of each request: next items, random items, an unknown id, duplicates.
    dtype: Literal["fp32", "bf16", "auto"]
        Of the engine; auto takes what is fastest here.
    max_history: int
        Use only this many events before each cut; 0 uses all.
    threads: int
        Of the matrix products; 0 takes what torch takes. One is not slowed down by other programs.
    bitwise: bool
        Serve with fixed row tiles and accept equal bits only.
    json: Path | None
        Write the verdict to this file too.
    """
    check_file("--json", json)
    dataset = open_events(events)
    options = VerifyOptions(users, candidates, dtype, seed, max_history, threads, bitwise)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=None)
        report = verify(
            model,
            dataset,
            options,
            lambda step, done, total: progress.update(task, description=step, completed=done, total=total),
        )
    write_json(json, report)
    _print(Console(), report)
    return 0 if report.ok else 1


def _print(console: Console, report: VerifyReport) -> None:
    tiles = ", fixed row tiles" if report.bitwise else ""
    title = escape(f"{report.model} on {report.events}, {report.dtype}{tiles}")
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("check", no_wrap=True)
    for name in ("pairs", "differ", "allowed", "reused", "computed", "order", "top 10"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ok", no_wrap=True)
    for check in report.checks:
        table.add_row(
            check.name,
            f"{check.comparisons:,}",
            f"{check.largest:.0e}",
            f"{check.tolerance:.0e}",
            f"{check.reused:,}",
            f"{check.computed:,}",
            _share(check.same_order, check.comparisons),
            _share(check.same_top, check.comparisons),
            "[green]yes[/]" if check.ok else "[bold red]NO[/]",
        )
    console.print(table)
    for check in report.checks:
        note = f" [dim]({check.note})[/]" if check.note else ""
        console.print(f"[bold]{check.name}[/]: {check.title}{note}", highlight=False)
    console.print(
        f"\n{report.cases} requests of {report.users} users, {report.candidates} candidates each; "
        f"history tokens: median {report.median:,.0f}, longest {report.longest:,}; "
        f"largest |logit| {report.largest_logit:.3g}; reuse: {report.cacheable}; {report.seconds:.0f} s.\n"
        "pairs: requests compared; differ: largest difference of a logit; reused, computed: history tokens; "
        "order: exactly the same ranking (scores closer than the tolerance may swap); "
        "top 10: the same ten items.",
        highlight=False,
    )
    for check in report.checks:
        for problem in check.problems:
            console.print(f"{check.name}: {problem}", style="red", markup=False, highlight=False)
        if check.problem_count > len(check.problems):
            console.print(
                f"{check.name}: {check.problem_count} problems in all", style="red", highlight=False
            )
    verdict = "every way of serving agrees" if report.ok else "FAILED: a way of serving changes the answer"
    console.print(verdict, style="bold green" if report.ok else "bold red")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
