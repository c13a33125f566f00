"""`relaygr bench slate`: what lists take beside ranking, whether rules hold, and what lists gain."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.slate import QUICK, SlateReport, SlateSpec, bench_slate, quick_report
from relaygr.cli.bench_slate_gains import gain_tables
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError

_DEFAULT = SlateSpec()


def slate(
    *,
    quick: bool = False,
    candidates: int = _DEFAULT.candidates,
    length: int = _DEFAULT.length,
    widths: str = ",".join(map(str, _DEFAULT.widths)),
    tops: str = ",".join(map(str, _DEFAULT.tops)),
    requests: int = _DEFAULT.requests,
    checked: int = _DEFAULT.checked,
    beside: int = _DEFAULT.beside,
    openings: int = _DEFAULT.openings,
    worlds: int = _DEFAULT.worlds,
    users: int = _DEFAULT.users,
    processes: int = _DEFAULT.processes,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Time lists on one core; compare with ranking; check rules at random; gains in worlds of known truth.

    Parameters
    ----------
    quick: bool
        Four lists of the top 30 of 200 candidates, 500 random requests, gains of 5 x 300 requests with step
        models of 8,000 logged lists; the JSON has the figures only.
    candidates: int
        Of a request.
    length: int
        Positions of a list.
    widths: str
        Lists that the beam keeps, numbers with commas between them.
    tops: str
        Candidates by pointwise rank that the beam looks at, and the trust region.
    requests: int
        Timed ones of each cell.
    checked: int
        Random requests under random rules whose lists the independent checker reads.
    beside: int
        Rankings that are timed, with a list and without.
    openings: int
        Requests of each kind whose many or tight rules are opened, with a limit of time and without.
    worlds: int
        In which gains are measured, each with users and models of its own; 0 for none.
    users: int
        Requests of each world.
    processes: int
        That measure gains.
    seed: int
        Of all that is random; of the first world.
    json: Path | None
        Also write the report to this file.
    """
    spec = QUICK
    if not quick:
        spec = SlateSpec(
            candidates=candidates,
            length=length,
            widths=_numbers("--widths", widths),
            tops=_numbers("--tops", tops),
            requests=requests,
            checked=checked,
            beside=beside,
            openings=openings,
            worlds=worlds,
            users=users,
            processes=processes,
            seed=seed,
        )
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_slate(spec, lambda text: status.update(escape(text)))
    write_json(json, quick_report(report) if quick else report)
    console = Console()
    console.print(f"{report.machine.cpu}, one core", highlight=False)
    console.print(_table(report, spec))
    if report.beside is not None:
        one = report.beside
        console.print(
            f"{one.preset}, history {one.history}, {one.candidates} items: ranking {one.full_ms:.1f} ms, "
            f"over a cached prefix {one.hit_ms:.1f} ms; the list {one.slate_ms:.1f} ms more "
            f"({one.extra_share:.0%}, {one.extra_share_hit:.0%})",
            highlight=False,
        )
    if report.openings:
        console.print(_openings(report))
    if report.rule_violations is not None:
        console.print(
            f"{report.lists_checked:,} lists of {spec.checked:,} random requests: "
            f"{report.rule_violations} rules broken",
            highlight=False,
        )
    if report.gains is not None:
        for table in gain_tables(report.gains):
            console.print(table)
        console.print(f"gains: {report.gains.seconds:.0f} s", highlight=False)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(option, f"{text!r} must be whole numbers with commas between them") from None


def _table(report: SlateReport, spec: SlateSpec) -> Table:
    title = f"A list of {spec.length} from {spec.candidates}: milliseconds; wall clock, then processor time"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in (
        "rules",
        "B",
        "m",
        "P50",
        "P99",
        "cpu P50",
        "cpu P99",
        "fallback",
        "search",
        "others",
        "rest",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in report.cells:
        stage = cell.stage_ms.get
        search = stage("greedy", 0.0) + stage("beam", 0.0)
        rest = stage("evaluation", 0.0) + stage("explanation", 0.0)
        figures = (cell.p50_ms, cell.p99_ms, cell.cpu_p50_ms, cell.cpu_p99_ms)
        parts = (stage("fallback", 0.0), search, stage("generators", 0.0), rest)
        table.add_row(
            cell.rules, str(cell.width), str(cell.top), *(f"{value:.1f}" for value in (*figures, *parts))
        )
    return table


def _openings(report: SlateReport) -> Table:
    table = Table(
        title="Opening rules, milliseconds", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for name in ("rules", "candidates", "length", "budget_ms", "requests", "P50", "most", "gave up a rule"):
        table.add_column(name, justify="left" if name == "rules" else "right")
    for cell in report.openings:
        limit = f"{cell.limit_ms:g}" if cell.limit_ms else "none"
        relaxed = f"{cell.relaxed}, of lists that are there" if cell.hidden else str(cell.relaxed)
        sizes = (str(cell.candidates), str(cell.length), limit, str(cell.requests))
        table.add_row(cell.rules, *sizes, f"{cell.p50_ms:.1f}", f"{cell.most_ms:.1f}", relaxed)
    return table
