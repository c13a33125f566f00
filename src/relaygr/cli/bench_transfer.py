"""`relaygr bench transfer`: what a copy beside the pass saves over one before it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.transfer import TransferReport, TransferSpec, bench_transfer
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file


def transfer(
    *,
    preset: str = TransferSpec().preset,
    json: Path | None = None,
    history: int = 4096,
    suffix: int = 32,
    candidates: int = 256,
    dtype: str = "fp32",
    rounds: int = 25,
    threads: int = 0,
    seed: int = 0,
) -> None:
    """Time a ranking whose prefix is in host memory: copied layer by layer beside it, or whole before it.

    Parameters
    ----------
    preset: str
        Size of the model; weights are random.
    json: Path | None
        Also write the report to this file.
    history: int
        Events of the user.
    suffix: int
        The newest of them, which are computed; the others are loaded.
    rounds: int
        Runs of each variant, in turns.
    threads: int
        Of the matrix products; 0 leaves one core to the copy.
    """
    spec = TransferSpec(
        preset=preset,
        history=history,
        suffix=suffix,
        candidates=candidates,
        dtype=dtype,
        rounds=rounds,
        threads=threads,
        seed=seed,
    )
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_transfer(spec, lambda text: status.update(escape(text)))
    write_json(json, report)
    console = Console()
    console.print(_table(report))
    console.print(_summary(report), soft_wrap=True, markup=False)


def _table(report: TransferReport) -> Table:
    title = (
        f"{report.preset}, {report.dtype}, {report.loaded_tokens} tokens loaded, {report.suffix} computed, "
        f"{report.candidates} candidates, {report.threads} of {report.cores} cores compute: ms, median"
    )
    table = Table(title=title)
    table.add_column("way")
    for name in ("total", "a layer", "GiB/s"):
        table.add_column(name, justify="right")
    layers = report.layers
    for way, total, speed in (
        ("copied layer by layer, beside the pass", report.layer_wise_ms, None),
        ("copied whole, then the pass", report.whole_first_ms, None),
        ("copied whole on the lane, then the pass", report.lane_first_ms, None),
        ("the pass alone (c)", report.compute_ms, None),
        ("the copy alone (t)", report.copy_ms, report.gib_per_s),
        ("the copy through staging", report.staged_copy_ms, report.staged_gib_per_s),
    ):
        table.add_row(way, f"{total:.2f}", f"{total / layers:.2f}", "" if speed is None else f"{speed:.1f}")
    return table


def _summary(report: TransferReport) -> str:
    return (
        f"bound max(c, t) * {report.layers} + min(c, t) = {report.bound_ms:.2f} ms; layer by layer takes "
        f"{report.over_bound:.2f} of it and {report.saved_ms:.2f} ms less than whole first; "
        f"largest difference of a logit {report.max_score_diff:.1e}; {report.rounds} rounds; {report.cpu}"
    )
