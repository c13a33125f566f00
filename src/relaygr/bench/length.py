"""The length study: one model a seed and dataset, ranked at every cap on the history it reads."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

from relaygr import __version__
from relaygr.bench.demo_notes import machine_note
from relaygr.bench.length_markdown import length_markdown
from relaygr.bench.length_models import study_train, trained
from relaygr.bench.length_notes import notes_for
from relaygr.bench.length_plot import length_svg
from relaygr.bench.length_result import LengthDataset, LengthStudy, TrainedModel
from relaygr.config.limits import Range
from relaygr.config.settings import TrainConfig
from relaygr.core.errors import ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.data.dataset import Events, open_events
from relaygr.data.split import temporal_split
from relaygr.kernels.interface import Kernel
from relaygr.kernels.select import choose
from relaygr.models.presets import preset
from relaygr.models.weights import load_ranker
from relaygr.training.candidates import OWN_SHARE, Mode, Seen, SeenOption, seen_rule
from relaygr.training.checkpoint import data_fingerprint
from relaygr.training.length import LengthOptions, LengthReport, NamedModel, check_caps, evaluate_lengths
from relaygr.training.offline import Part

JSON_FILE, SVG_FILE, MARKDOWN_FILE = "length.json", "length.svg", "length.md"
MOST_MODELS = 100
TRAIN = TrainConfig(max_minutes=4.0)

Observe = Callable[[str, float, str], None]  # step, share done, what there is to say


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of candidates; `own_share` as in `training.candidates.CandidateSource`."""

    name: str
    mode: Mode
    own_share: float


KINDS = (
    Kind("sampled candidates", "sampled", OWN_SHARE),
    Kind("sampled candidates without own items", "sampled", 0.0),
    Kind("whole catalogue", "full", 0.0),
)


@dataclass(frozen=True, slots=True)
class StudySpec:
    """What to study.

    Attributes:
        events: folders of datasets with different names.
        seeds: one model each; they also draw its batches.
        caps: ascending numbers of newest events that a model may read.
        train: settings of every model; windows are widened to cover the caps.
        requests, full_requests: size of the sample of requests, with sampled candidates and with the whole
            catalogue.
        calibration_requests: validation requests for the calibration of each model.
        seen, negatives, part, seed: of the evaluation, see `training.length.LengthOptions`.
        notes: (name of a dataset, what must be said with its figures).
    """

    events: tuple[Path, ...]
    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    caps: tuple[int, ...] = (16, 64, 256, 1024)
    train: TrainConfig = TRAIN
    preset: str = "hstu-tiny"
    requests: int = 2000
    full_requests: int = 300
    calibration_requests: int = 200
    seen: SeenOption = "auto"
    negatives: int = 100
    part: Part = "test"
    seed: int = 0
    notes: tuple[tuple[str, str], ...] = ()
    command: str = ""


def run_study(spec: StudySpec, observe: Observe) -> LengthStudy:
    """Train what is not trained yet in OUT/models, evaluate, and write OUT/length.json, .svg and .md.

    Raises:
        ConfigError: an option, a dataset or a model is wrong; everything that can be known is checked before
            the first model is trained.
    """
    begun, started = time.monotonic(), _now()
    _check(spec)
    datasets = _open(spec)
    results = tuple(_dataset(spec, name, events, observe) for name, events in datasets)
    study = LengthStudy(
        relaygr=__version__,
        command=spec.command,
        started=started,
        finished=_now(),
        seconds=round(time.monotonic() - begun, 1),
        machine=machine_note(torch.get_num_threads(), {}),
        preset=spec.preset,
        caps=spec.caps,
        seeds=spec.seeds,
        datasets=results,
    )
    write_study(study, spec.out)
    return study


def write_study(study: LengthStudy, out: Path) -> None:
    """Write the three files, each whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / JSON_FILE, msgspec.json.format(msgspec.json.encode(study), indent=2) + b"\n")
    replace_file(out / SVG_FILE, length_svg(study).encode())
    replace_file(out / MARKDOWN_FILE, length_markdown(study, SVG_FILE).encode())


def replace_file(file: Path, data: bytes) -> None:
    """Write `data`; an interrupt leaves the older file and no other."""
    temporary = file.with_name(f"{file.name}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _dataset(spec: StudySpec, name: str, events: Events, observe: Observe) -> LengthDataset:
    seen = seen_rule(spec.seen, events, temporal_split(events).train_end_s)
    train = study_train(spec.train, spec.caps, seen)
    kernel = choose("cpu", "fp32").kernel
    runs = []
    for seed in spec.seeds:
        folder = spec.out / "models" / f"{name}-seed{seed}"
        one = msgspec.structs.replace(train, seed=seed)
        step = f"{events.meta.name}, train seed {seed}"
        runs.append(trained(events, folder, spec.preset, one, kernel, _named(observe, step)))
    return LengthDataset(
        name=events.meta.name,
        source=events.meta.source,
        licence=events.meta.licence,
        notes=notes_for(events.meta, spec.notes),
        fingerprint=data_fingerprint(events),
        users=events.n_users,
        events=events.n_events,
        items=events.meta.statistics.items,
        train=train,
        models=tuple(runs),
        reports=_evaluate(spec, events, seen, runs, kernel, observe),
    )


def _evaluate(
    spec: StudySpec,
    events: Events,
    seen: Seen,
    runs: Sequence[TrainedModel],
    kernel: Kernel,
    observe: Observe,
) -> tuple[LengthReport, ...]:
    models = [
        NamedModel(
            f"seed {run.seed}",
            load_ranker(spec.out / run.folder),
            Fingerprint(bytes.fromhex(run.fingerprint)),
        )
        for run in runs
    ]
    reports = []
    for kind in KINDS:
        if seen == "drop" and kind.own_share == 0 and kind.mode == "sampled":
            continue  # no negative is the user's own anyway
        step = f"{events.meta.name}, {kind.name}"
        options = LengthOptions(
            caps=spec.caps,
            part=spec.part,
            candidates=kind.mode,
            seen=spec.seen,
            negatives=spec.negatives,
            own_share=kind.own_share,
            max_requests=spec.full_requests if kind.mode == "full" else spec.requests,
            calibration_requests=spec.calibration_requests,
            seed=spec.seed,
        )
        reports.append(evaluate_lengths(models, events, kernel, options, _counted(observe, step)))
    return tuple(reports)


def _named(observe: Observe, step: str) -> Callable[[float, str], None]:
    return lambda done, words: observe(step, done, words)


def _counted(observe: Observe, step: str) -> Callable[[str, int, int], None]:
    return lambda what, done, total: observe(step, done / total, f"{what}, {done:,} of {total:,} requests")


def _check(spec: StudySpec) -> None:
    """Options that would fail after minutes."""
    if not spec.events:
        raise ConfigError("events", "none given, need at least 1")
    longest = int(TrainConfig.LIMITS["max_history"].high)
    check_caps(spec.caps, longest, "any model")
    if len(set(spec.seeds)) != len(spec.seeds):
        raise ConfigError("seeds", f"{list(spec.seeds)} holds a seed twice")
    Range(1, MOST_MODELS).check("seeds", len(spec.seeds))
    for seed in spec.seeds:
        TrainConfig.LIMITS["seed"].check("seeds", seed)
    for name in ("requests", "full_requests", "calibration_requests"):
        Range(1, 1_000_000).check(name, getattr(spec, name))
    TrainConfig.LIMITS["negatives"].check("negatives", spec.negatives)
    TrainConfig.LIMITS["seed"].check("seed", spec.seed)
    preset(spec.preset)


def _open(spec: StudySpec) -> list[tuple[str, Events]]:
    """Every dataset with the start of its models' folder names."""
    found: dict[str, Events] = {}
    for folder in spec.events:
        events = open_events(folder)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", events.meta.name).strip(".-") or "data"
        if name in found:
            raise ConfigError("events", f"{found[name].path} and {folder} are both called {name!r}")
        found[name] = events
    names = {events.meta.name for events in found.values()}
    for name, _ in spec.notes:
        if name not in names:
            raise ConfigError("note", f"{name!r} is none of the datasets: {', '.join(sorted(names))}")
    return list(found.items())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
