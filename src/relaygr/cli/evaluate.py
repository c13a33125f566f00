"""`relaygr eval`: how well a trained model ranks what came after the split, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from relaygr.cli.evaluate_generator import generator
from relaygr.cli.evaluate_length import length, numbers, print_lengths
from relaygr.cli.evaluate_slate import slate
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.config.settings import TrainConfig
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import open_events
from relaygr.kernels.select import choose
from relaygr.models.weights import open_ranker
from relaygr.training.candidates import OWN_SHARE, SeenOption
from relaygr.training.evaluate import Estimate
from relaygr.training.length import LengthOptions, NamedModel, evaluate_lengths
from relaygr.training.metrics import METRICS
from relaygr.training.offline import EvalOptions, EvalReport, Part, evaluate_ranker

eval_app = App(name="eval", help="Evaluate trained models offline.")
eval_app.command(length)
eval_app.command(generator)
eval_app.command(slate)


@eval_app.command
def ranker(
    *,
    model: Annotated[tuple[Path, ...], Parameter(negative="")],
    events: Path,
    caps: str | None = None,
    part: Part = "test",
    max_requests: int | None = None,
    candidates: Literal["sampled", "full"] = "sampled",
    negatives: int = 100,
    seen: SeenOption = "auto",
    own_share: float = OWN_SHARE,
    calibration_requests: int = 1000,
    dtype: Literal["fp32", "bf16"] = "fp32",
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Rank each (user, second) after the split with the model, by popularity and by recency.

    A request knows the user's events strictly before its second; its positives are the items of that second.

    Parameters
    ----------
    model: tuple[Path, ...]
        Folder of the model; with --caps more than one may be given, and figures are their mean.
    events: Path
        Folder of the dataset it was trained on.
    caps: str | None
        Instead, rank with the history cut to exactly so many newest events, for each of these ascending
        numbers between commas, and tell the differences.
    part: Part
        The last 10 % of the events, or the 10 % before.
    max_requests: int | None
        Size of a uniform sample of the requests, by default all.
    candidates: Literal["sampled", "full"]
        Positives among sampled negatives, or all items that occur in the training part.
    negatives: int
        Per request, when sampled.
    seen: SeenOption
        Whether items of the user's earlier events are candidates; auto drops them where no user of the
        training part has an item twice.
    own_share: float
        Of the sampled negatives, from the user's last 200 events.
    calibration_requests: int
        With --caps: validation requests on which the probabilities of a model are calibrated.
    dtype: Literal["fp32", "bf16"]
        Of the model's matrices.
    seed: int
        Of the samples and of the bootstrap.
    json: Path | None
        Write the report to this file.
    """
    check_file("--json", json)
    TrainConfig.LIMITS["negatives"].check("--negatives", negatives)
    TrainConfig.LIMITS["seed"].check("--seed", seed)
    if caps is not None:
        limited = LengthOptions(
            caps=numbers("--caps", caps),
            part=part,
            candidates=candidates,
            seen=seen,
            negatives=negatives,
            own_share=own_share,
            max_requests=max_requests,
            calibration_requests=calibration_requests,
            seed=seed,
        )
        _lengths(model, events, limited, dtype, json)
        return
    if len(model) > 1:
        raise ConfigError("--model", f"{len(model)} given, limit 1 without --caps")
    options = EvalOptions(
        part=part,
        candidates=candidates,
        negatives=negatives,
        seen=seen,
        own_share=own_share,
        max_requests=max_requests,
        seed=seed,
    )
    choice = choose("cpu", dtype)
    loaded, model_fp = open_ranker(model[0], choice.dtype)
    dataset = open_events(events)
    with _bar() as bar:
        task = bar.add_task("requests", total=None)
        report = evaluate_ranker(
            loaded,
            model_fp.hex(),
            dataset,
            choice.kernel,
            options,
            observe=lambda done: bar.update(task, completed=done),
            total=lambda count: bar.update(task, total=count),
        )
    write_json(json, report)
    _print(report, Console())


def _lengths(
    folders: tuple[Path, ...], events: Path, options: LengthOptions, dtype: str, json: Path | None
) -> None:
    choice = choose("cpu", dtype)
    opened = ((str(folder), *open_ranker(folder, choice.dtype)) for folder in folders)
    models = [NamedModel(name, loaded, model_fp) for name, loaded, model_fp in opened]
    dataset = open_events(events)
    with _bar() as bar:
        tasks: dict[str, TaskID] = {}

        def observe(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(escape(what), total=total)
            bar.update(tasks[what], completed=done)

        report = evaluate_lengths(models, dataset, choice.kernel, options, observe)
    write_json(json, report)
    print_lengths(report, Console())


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _print(report: EvalReport, console: Console) -> None:
    kind = "all training items" if report.options.candidates == "full" else "sampled candidates"
    for over in ("requests", "users"):
        title = escape(f"{report.data}, {report.options.part}: mean over {over}, {kind}")
        table = Table("", *METRICS, title=title, box=None, pad_edge=False)
        rows: dict[tuple[str, str], list[str]] = {}
        for one in report.estimates:
            if one.over == over:
                rows.setdefault((one.scorer, one.minus), []).append(_cell(one))
        for (scorer, minus), cells in sorted(rows.items(), key=lambda row: row[0][1] != ""):
            table.add_row(f"{scorer} - {minus}" if minus else scorer, *cells)
        console.print(table)
    console.print(
        f"{report.requests:,} requests of {report.users:,} users in {report.seconds:.1f} s; "
        f"{report.left_out_positives:,} positives outside the candidates, "
        f"{report.unrankable_requests:,} requests unrankable; 95 % intervals from a bootstrap over users",
        soft_wrap=True,
    )
    if report.negatives_mix:
        console.print(f"negatives: {report.options.negatives}; {report.negatives_mix}", soft_wrap=True)


def _cell(one: Estimate) -> str:
    mean = f"{one.mean:+.3f}" if one.minus else f"{one.mean:.3f}"
    # Without leading zeros three intervals fit into 80 columns.
    return escape(f"{mean} [{one.low:.3f}, {one.high:.3f}]".replace("0.", "."))
