"""`relaygr eval length`: how much ranking quality depends on how much history a ranker reads."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.length import JSON_FILE, MARKDOWN_FILE, SVG_FILE, StudySpec, run_study
from relaygr.bench.length_cells import cell, gap_cell
from relaygr.bench.length_notes import parse_notes
from relaygr.bench.length_plot import check_plots
from relaygr.cli.steps import Steps
from relaygr.config.load import load_config
from relaygr.config.paths import check_file, check_folder
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import META_FILE
from relaygr.training.candidates import SeenOption
from relaygr.training.cap_estimates import CAP_METRICS, OVERS
from relaygr.training.length import LengthReport
from relaygr.training.offline import Part
from relaygr.training.segments import ALL


def length(
    *,
    events: Annotated[tuple[Path, ...], Parameter(negative="")],
    out: Path,
    seeds: str = "0,1,2",
    caps: str = "16,64,256,1024",
    preset: str = "hstu-tiny",
    max_minutes_per_model: float = 4.0,
    max_steps: int | None = None,
    requests: int = 2000,
    full_requests: int = 300,
    calibration_requests: int = 200,
    seen: SeenOption = "auto",
    negatives: int = 100,
    part: Part = "test",
    seed: int = 0,
    note: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    config: Path | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> None:
    """Train a ranker for each dataset and seed and rank with its history cut to the newest events.

    Writes length.json, length.svg and length.md. A model that is finished in OUT is not trained again.

    Parameters
    ----------
    events: tuple[Path, ...]
        Folder of a dataset; may be given more than once.
    out: Path
        Folder of the results and, in OUT/models, of the models.
    seeds: str
        One model for each.
    caps: str
        Numbers of newest events to read, ascending; training windows are widened to cover them.
    preset: str
        Size of the models.
    max_minutes_per_model: float
        Wall-clock limit of a training run; short for `--set train.max_minutes=`.
    max_steps: int | None
        Limit on its steps. Runs that end by steps are reproducible up to rounding, by the clock
        not.
    requests: int
        Size of a uniform sample of the requests, for sampled candidates.
    full_requests: int
        The same for the whole catalogue.
    calibration_requests: int
        Validation requests on which the probabilities of a model are calibrated.
    seen: SeenOption
        Whether items of the user's earlier events are candidates; auto drops them where no user of the
        training part has an item twice.
    negatives: int
        Per request, when sampled.
    part: Part
        The last 10 % of the events, or, to choose settings, the 10 % before.
    seed: int
        Of the samples and of the bootstrap.
    note: tuple[str, ...]
        NAME=TEXT: what has to be said with the figures of dataset NAME; may be given more than once.
    config: Path | None
        TOML file of settings.
    set: tuple[str, ...]
        A setting, `train.key=value`; may be given more than once.
    """
    check_folder("--out", out)
    if (out / META_FILE).exists():
        raise ConfigError("--out", f"{out} is a dataset; choose another folder")
    for name in (JSON_FILE, SVG_FILE, MARKDOWN_FILE):
        check_file("--out", out / name)
    check_plots()
    short = {"max_minutes": max_minutes_per_model, "max_steps": max_steps}
    overrides = [*(f"train.{name}={value}" for name, value in short.items() if value is not None), *set]
    spec = StudySpec(
        events=events,
        out=out,
        seeds=numbers("--seeds", seeds),
        caps=numbers("--caps", caps),
        train=load_config(config, os.environ, overrides).train,
        preset=preset,
        requests=requests,
        full_requests=full_requests,
        calibration_requests=calibration_requests,
        seen=seen,
        negatives=negatives,
        part=part,
        seed=seed,
        notes=parse_notes("--note", note),
        command=shlex.join(["relaygr", *sys.argv[1:]]),
    )
    with Steps() as steps:
        study = run_study(spec, steps.show)
    console = Console()
    for dataset in study.datasets:
        for report in dataset.reports:
            print_lengths(report, console)
        for text in dataset.notes:
            console.print(f"{dataset.name}: {text}", soft_wrap=True, markup=False, highlight=False)
    files = ", ".join(str(out / name) for name in (MARKDOWN_FILE, SVG_FILE, JSON_FILE))
    console.print(f"{study.seconds:.0f} s; {files}", soft_wrap=True, markup=False, highlight=False)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers between commas; ConfigError, naming `option`, for anything else."""
    found = []
    for part in text.split(","):
        if not part.strip().isascii() or not part.strip().isdigit():
            raise ConfigError(option, f"{part!r} in {text!r} is not a whole number")
        found.append(int(part))
    return tuple(found)


def print_lengths(report: LengthReport, console: Console) -> None:
    """The values of every cap and the differences between neighbours, over requests and over users."""
    kind = "all training items" if report.options.candidates == "full" else "sampled candidates"
    if kind.startswith("sampled") and report.seen == "keep":
        kind += f", {report.options.own_share:.0%} own"
    for over in OVERS:
        title = escape(f"{report.data}, {report.options.part}: mean over {over}, {kind}, seen: {report.seen}")
        table = Table("events", *CAP_METRICS, title=title, box=None, pad_edge=False)
        rows: dict[str, list[str]] = {}
        shown = [one for one in report.estimates if (one.segment, one.over) == (ALL, over)]
        for one in sorted(shown, key=lambda one: (one.minus > 0, one.cap == 0)):
            name = f"{one.cap:,} − {one.minus:,}" if one.minus else f"{one.cap:,}" if one.cap else one.scorer
            text = gap_cell(one).replace("*", "") if one.minus else cell(one, spread=False)
            rows.setdefault(name, []).append(escape(text.partition(" (")[0]))
        for name, cells in rows.items():
            table.add_row(name, *cells)
        console.print(table)
    whole = report.segments[0]
    console.print(
        f"{whole.requests:,} requests of {whole.users:,} users, mean of {len(report.models)} model(s) in "
        f"{report.seconds:.1f} s; {report.left_out_positives:,} positives outside the candidates, "
        f"{report.unrankable_requests:,} requests unrankable; 95 % intervals from a bootstrap over users",
        soft_wrap=True,
    )
    if report.negatives_mix:
        console.print(f"negatives: {report.options.negatives}; {report.negatives_mix}", soft_wrap=True)
