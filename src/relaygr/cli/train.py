"""`relaygr train`: train models on a dataset, with a progress bar that shows loss and validation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from relaygr.cli.train_generator import generator
from relaygr.cli.train_slate import slate
from relaygr.config.load import load_config
from relaygr.config.paths import check_folder
from relaygr.data.dataset import open_events
from relaygr.kernels.select import choose
from relaygr.models.presets import preset as preset_config
from relaygr.training.initial import ranker_config
from relaygr.training.ranker import Progress, RankerTrainer
from relaygr.training.report import TrainReport

train_app = App(name="train", help="Train models on events and on logged lists.")
train_app.command(generator)
train_app.command(slate)


@train_app.command
def ranker(
    *,
    events: Path,
    out: Path,
    preset: str = "hstu-tiny",
    max_seq_len: int | None = None,
    max_minutes: float | None = None,
    max_steps: int | None = None,
    seed: int | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    config: Path | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> None:
    """Train a ranker on the oldest 80 % of the events, stopping early on the next 10 %.

    Parameters
    ----------
    events: Path
        Folder of the dataset.
    out: Path
        Folder of the model: the weights that ranked validation best, and the state of the run.
    preset: str
        Size of the model.
    max_seq_len: int | None
        Longest history of the model; by default no longer than what it is trained on, `train.max_history`.
    max_minutes: float | None
        Wall-clock limit; short for `--set train.max_minutes=`.
    max_steps: int | None
        Limit on optimiser steps; such a run is reproducible up to rounding. Short for
        `--set train.max_steps=`.
    seed: int | None
        Short for `--set train.seed=`.
    resume: bool
        Continue the run in OUT; data and settings, limits aside, must be the same.
    config: Path | None
        TOML file of settings.
    set: tuple[str, ...]
        A setting, `train.key=value`; may be given more than once.
    """
    check_folder("--out", out)
    short = {"max_minutes": max_minutes, "max_steps": max_steps, "seed": seed}
    overrides = [*set, *(f"train.{name}={value}" for name, value in short.items() if value is not None)]
    settings = load_config(config, os.environ, overrides).train
    dataset = open_events(events)
    base = preset_config(preset)
    # A model ranks worse with histories longer than any it was trained on.
    length = min(base.max_seq_len, settings.max_history) if max_seq_len is None else max_seq_len
    model = ranker_config(base, dataset, settings, length)
    kernel = choose("cpu", "fp32").kernel
    trainer = RankerTrainer(dataset, out, model, settings, kernel, resume)
    with _bar() as bar:
        task = bar.add_task("training", total=1.0, shown="")
        report = trainer.run(lambda now: bar.update(task, completed=now.done, shown=_describe(now)))
    Console().print(escape(_summary(report, out)), soft_wrap=True)


def _bar() -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[shown]}"),
        console=Console(stderr=True),
    )


def _describe(now: Progress) -> str:
    valid = f"ndcg@10 {now.latest.ndcg:.4f}" if now.latest else "ndcg@10 -"
    best = f" (best {now.best.ndcg:.4f})" if now.best else ""
    return f"step {now.step:,} loss {now.loss:.4f} {valid}{best} {now.tokens_per_s:,.0f} tokens/s"


def _summary(report: TrainReport, out: Path) -> str:
    best = report.best
    kept = (
        f"validation NDCG@10 {best.ndcg:.4f}, HR@10 {best.hr:.4f}, AUC {best.auc:.4f} at step {best.step:,}"
        if best
        else "no validation requests, the last weights are kept"
    )
    return (
        f"{out}: {report.steps:,} steps in {report.elapsed_s:.0f} s, stopped by {report.stopped}; {kept}; "
        f"model {report.model_fingerprint}"
    )
