"""`relaygr bench`: measure ranking on this machine and what its threads cost."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.machine import Machine
from relaygr.bench.peers import PeerComparison
from relaygr.bench.rank import RankSpec, bench_rank
from relaygr.bench.report import RankReport
from relaygr.bench.threads import ThreadsReport, ThreadsSpec, bench_threads
from relaygr.cli.bench_cluster import cluster
from relaygr.cli.bench_gateway import gateway
from relaygr.cli.bench_serve import serve, soak
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError

_RANK_LEGEND = (
    "full: nothing cached; hit: history cached; 16 new: 16 events behind the cached rest; naive: dense "
    "PyTorch pass in an untuned process of its own; kept heap: the same in this one, which keeps freed "
    "memory; eff.: model FLOP/s of the prefill over the best matrix rate; exec.: only FLOPs really computed, "
    "since a prefill leaves out what nobody reads of the last layer; max diff: largest difference of a "
    "logit to the dense pass"
)

bench_app = App(name="bench", help="Measure latency and efficiency on this machine.")
bench_app.command(serve)
bench_app.command(soak)
bench_app.command(cluster)
bench_app.command(gateway)
bench_app.command("relaygr.cli.bench_relay:relay", name="relay")
bench_app.command("relaygr.cli.bench_cache:cache", name="cache")
bench_app.command("relaygr.cli.bench_transfer:transfer", name="transfer")
bench_app.command("relaygr.cli.bench_drift:drift", name="drift")
bench_app.command("relaygr.cli.bench_beam:beam", name="beam")
bench_app.command("relaygr.cli.bench_beam_modes:beams", name="beam-modes")
bench_app.command("relaygr.cli.bench_linear:linear", name="linear")
bench_app.command("relaygr.cli.bench_slate:slate", name="slate")
bench_app.command("relaygr.cli.bench_one_shot:one_shot", name="one-shot")


@bench_app.command
def rank(
    *,
    preset: str = RankSpec().preset,
    json: Path | None = None,
    histories: str = "512,1024,2048,4096",
    candidates: str = "32,128,512",
    dtypes: str = "fp32,bf16",
    repeats: int = 9,
    threads: int = 0,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Time ranking with and without a cached history, against a dense PyTorch pass.

    Parameters
    ----------
    preset: str
        Size of the model; weights are random.
    json: Path | None
        Also write the report to this file.
    histories: str
        Comma-separated numbers of events.
    candidates: str
        Comma-separated numbers of candidates.
    dtypes: str
        fp32, bf16 or both.
    repeats: int
        Most rounds of each row; a row that takes ten seconds, and the slow dense pass, get fewer.
    threads: int
        Of the matrix products; 0 takes what torch takes.
    quick: bool
        2048 events x 128 candidates only, three rounds.
    """
    spec = RankSpec(
        preset=preset,
        histories=(2048,) if quick else _numbers("--histories", histories),
        candidates=(128,) if quick else _numbers("--candidates", candidates),
        dtypes=tuple(part.strip() for part in dtypes.split(",")),
        repeats=min(repeats, 3) if quick else repeats,
        threads=threads,
        seed=seed,
    )
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_rank(spec, lambda text: status.update(escape(text)))
    write_json(json, report)
    console = Console()
    console.print(_machine_line(report.machine), soft_wrap=True, markup=False)
    for dtype in spec.dtypes:
        console.print(_rank_table(report, dtype))
    console.print(_RANK_LEGEND, soft_wrap=True, markup=False)
    if report.peers:
        console.print(_peer_table(report.peers))
        console.print(report.peers_source, soft_wrap=True, markup=False)


@bench_app.command(name="threads")
def threads_command(
    *,
    preset: str = ThreadsSpec().preset,
    json: Path | None = None,
    history: int = 1024,
    candidates: int = 128,
    dtype: str = "auto",
    seconds: float = 3.0,
) -> None:
    """Time a prefix hit and a prefill with one and all threads, alone and beside a busy process.

    Parameters
    ----------
    json: Path | None
        Also write the report to this file.
    seconds: float
        Time of each of the eight cells.
    """
    spec = ThreadsSpec(preset, history, candidates, dtype, seconds)
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_threads(spec, lambda text: status.update(escape(text)))
    write_json(json, report)
    console = Console()
    console.print(_threads_table(report))
    console.print(report.recommendation, soft_wrap=True, markup=False)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """Comma-separated whole numbers."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or len(part) > 9:
            raise ConfigError(option, f"{part!r} in {text!r} is not a whole number")
    return tuple(int(part) for part in parts)


def _machine_line(machine: Machine) -> str:
    parts = [f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads, torch {machine.torch}"]
    for dtype in ("fp32", "bf16"):
        rate = machine.matrix_gflops_by_route.of(dtype)
        if rate is not None:
            onednn = "none" if rate.onednn is None else f"{rate.onednn:.0f}"
            parts.append(f"{dtype} torch.mm {rate.aten:.0f}, oneDNN {onednn} GFLOP/s")
    return "; ".join([*parts, f"copy {machine.copy_gb_s:.1f} GB/s"])


def _compact(title: str) -> Table:
    """A table that fits 80 columns, the width rich takes where there is no terminal."""
    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _rank_table(report: RankReport, dtype: str) -> Table:
    rows = [row for row in report.rows if row.dtype == dtype]
    table = _compact(f"{report.preset}, {dtype}, route {rows[0].route}: milliseconds, median")
    table.add_column("history/\ncandid.", no_wrap=True)
    for name in ("full", "hit", "16\nnew", "pre-\nfill", "naive", "kept\nheap", "full/\nhit", "naive/\nfull"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("eff.", "exec.", "max\ndiff"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.history}/{row.candidates}",
            *map(_ms, (row.full_ms, row.hit_ms, row.append_ms, row.prefill_ms)),
            *map(_ms, (row.naive_ms, row.naive_kept_heap_ms)),
            f"{row.full_ms / row.hit_ms:.1f}",
            f"{row.naive_ms / row.full_ms:.1f}",
            f"{row.prefill_efficiency:.0%}",
            f"{row.prefill_executed_efficiency:.0%}",
            f"{row.max_score_diff:.0e}",
        )
    return table


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _peer_table(peers: list[PeerComparison]) -> Table:
    table = _compact("Peers, scaled to this machine's torch.mm rate: milliseconds, median")
    for name in ("peer", "step", "history/\ncandid.", "dtype"):
        table.add_column(name)
    for name in ("peer", "scaled", "ours", "speed-up", "over its\nbest dtype"):
        table.add_column(name, justify="right")
    for row in peers:
        table.add_row(
            row.peer,
            row.step,
            f"{row.history}/{row.candidates}",
            row.dtype,
            *map(_ms, (row.peer_ms, row.scaled_ms, row.ours_ms)),
            f"{row.speed_up:.2f}",
            "-" if row.speed_up_best is None else f"{row.speed_up_best:.2f}",
        )
    return table


def _threads_table(report: ThreadsReport) -> Table:
    title = f"{report.preset}, {report.history}/{report.candidates}, {report.cores} cores: milliseconds"
    table = _compact(title)
    for name in ("wait policy", "threads", "load"):
        table.add_column(name)
    for name in ("hit P50", "P99", "prefill P50", "P99", "samples"):
        table.add_column(name, justify="right")
    for cell in report.cells:
        figures = (cell.hit_p50_ms, cell.hit_p99_ms, cell.prefill_p50_ms, cell.prefill_p99_ms)
        load = "busy" if cell.busy else "alone"
        table.add_row(cell.wait_policy, f"{cell.threads}", load, *map(_ms, figures), f"{cell.samples}")
    return table
