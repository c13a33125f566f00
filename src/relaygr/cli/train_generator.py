"""`relaygr train generator`: a decoder that generates semantic ids, with a progress bar that shows recall."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from relaygr.cli.steps import Steps
from relaygr.config.load import load_config
from relaygr.config.paths import check_folder
from relaygr.config.train_generator import Arch
from relaygr.data.dataset import open_events
from relaygr.generation.sids.artefact import open_sids
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.training.generator import GeneratorProgress, GeneratorTrainer
from relaygr.training.generator_report import GeneratorReport


def generator(
    *,
    events: Path,
    sids: Path,
    out: Path,
    arch: Arch | None = None,
    max_minutes: float | None = None,
    max_steps: int | None = None,
    seed: int | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    config: Path | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> None:
    """Train a decoder on the oldest 80 % of the events to generate what comes next, as semantic ids.

    Parameters
    ----------
    events: Path
        Folder of the dataset.
    sids: Path
        Folder of a build of semantic ids of its items (`relaygr sids build`).
    out: Path
        Folder of the model, in the layout of Hugging Face, with generation.json that says how prompts are
        made; the weights of the best validation, and the state of the run.
    arch: Arch | None
        What the layers are: attention (Qwen3), hybrid (Qwen3-Next: three layers of linear attention to one of
        full attention) or linear (linear attention only); short for `--set train_generator.arch=`.
    max_minutes: float | None
        Wall-clock limit; short for `--set train_generator.max_minutes=`.
    max_steps: int | None
        Limit on optimiser steps; such a run is reproducible up to rounding. Short for
        `--set train_generator.max_steps=`.
    seed: int | None
        Short for `--set train_generator.seed=`.
    resume: bool
        Continue the run in OUT; data, ids and settings, limits aside, must be the same.
    config: Path | None
        TOML file of settings.
    set: tuple[str, ...]
        A setting, `train_generator.key=value`; may be given more than once.
    """
    check_folder("--out", out)
    short = {"arch": arch, "max_minutes": max_minutes, "max_steps": max_steps, "seed": seed}
    overrides = [
        *set,
        *(f"train_generator.{name}={value}" for name, value in short.items() if value is not None),
    ]
    settings = load_config(config, os.environ, overrides).train_generator
    dataset = open_events(events)
    built, digest = open_sids(sids)
    trainer = GeneratorTrainer(dataset, built, digest, out, settings, CpuBeams(), resume)
    with Steps() as steps:
        report = trainer.run(lambda now: steps.show("training", now.done, _describe(now)))
    Console().print(escape(_summary(report, out)), soft_wrap=True)


def _describe(now: GeneratorProgress) -> str:
    valid = f"recall@10 {now.latest.recall:.4f}" if now.latest else "recall@10 -"
    best = f" (best {now.best.recall:.4f})" if now.best else ""
    return f"step {now.step:,} loss {now.loss:.3f} {valid}{best} {now.items_per_s:,.0f} items/s"


def _summary(report: GeneratorReport, out: Path) -> str:
    best = report.best
    kept = (
        f"validation recall@10 {best.recall:.4f}, NDCG@10 {best.ndcg:.4f} at step {best.step:,}"
        if best
        else "no validation requests, the last weights are kept"
    )
    return (
        f"{out}: {report.parameters:,} parameters, {report.steps:,} steps in {report.elapsed_s:.0f} s, "
        f"stopped by {report.stopped}; {kept}; semantic ids {report.sids}"
    )
