"""`relaygr bench drift`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.drift import DriftReport, DriftSpec, bench_drift
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file

_LEGEND = (
    "size: host over device bytes; logit, prob.: largest difference to a pass without a cache; mean: mean "
    "difference of a logit over the spread of the logits; top 10: share of the best ten that stay; load: "
    "into pages, median; turns: largest difference of a probability after going to host memory and back so "
    "often; a scale of a page is rounded anew with every spill"
)


def drift(
    *,
    preset: str = DriftSpec().preset,
    model: Path | None = None,
    json: Path | None = None,
    dtype: Literal["fp32", "bf16"] = "fp32",
    candidates: int = DriftSpec().candidates,
    seeds: int = DriftSpec().seeds,
    limit: float = DriftSpec().limit,
) -> None:
    """Measure what keeping states in fewer bits in host memory does to scores, sizes and load times.

    Parameters
    ----------
    preset: str
        Size of a model with random weights.
    model: Path | None
        Folder of a trained model, instead; random ones differ from it.
    json: Path | None
        Also write the report to this file.
    dtype: Literal["fp32", "bf16"]
        Of the model.
    candidates: int
        Of each made-up user.
    seeds: int
        Users of each history length.
    limit: float
        A format that moves a probability further is refused: `host.drift_limit`.
    """
    spec = DriftSpec(preset, model, dtype, candidates, seeds, limit)
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_drift(spec, lambda text: status.update(escape(text)))
    write_json(json, report)
    _print(Console(), report)


def _print(console: Console, report: DriftReport) -> None:
    machine = f"{report.cpu}, {report.cores} cores, {report.threads} threads, torch {report.torch}"
    console.print(machine, soft_wrap=True, markup=False)
    what = report.model or f"{report.preset}, random weights"
    lengths = ", ".join(map(str, report.prefixes))
    console.print(
        f"{what}, {report.dtype}: prefixes of {lengths}, {report.suffix} newer events, {report.candidates} "
        f"candidates, {report.seeds} users each",
        soft_wrap=True,
        markup=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("format", no_wrap=True)
    for name in ("size", "logit", "prob.", "mean", "top 10", "load\nms", f"{report.cycles}\nturns"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("refused")
    for row in report.rows:
        table.add_row(
            row.format,
            f"1/{1 / row.size_ratio:.2f}",
            *(f"{value:.1e}" for value in (row.logit, row.probability, row.mean_share)),
            f"{row.overlap:.3f}",
            f"{row.load_ms:.1f}",
            f"{row.cycles_probability:.1e}",
            row.refused,
        )
    console.print(table)
    console.print(f"limit of a probability: {report.limit:g}. {_LEGEND}", soft_wrap=True, markup=False)
