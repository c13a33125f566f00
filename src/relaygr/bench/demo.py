"""The demonstration: events, a short training run, and held-out requests with and without a relay."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch

from relaygr import __version__
from relaygr.bench.cascade import Cascade, Lap, Mode, Visit, replay
from relaygr.bench.demo_engine import SETTINGS, pick_threads, random_engine
from relaygr.bench.demo_events import catalogue, git_events, synthetic_events
from relaygr.bench.demo_notes import cascade_note, data_note, machine_note
from relaygr.bench.demo_result import DemoReport, LatencySection, TrainingNote
from relaygr.bench.demo_stats import buckets, mode_stats, quality
from relaygr.bench.demo_visits import by_length, held_out_visits
from relaygr.bench.retrieval import RetrievalSpec, Retriever, item_vectors
from relaygr.config.settings import TrainConfig
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, open_events
from relaygr.data.split import temporal_split
from relaygr.data.synth import SynthSpec
from relaygr.engine.engine import Engine
from relaygr.kernels.select import choose
from relaygr.models.presets import AnyConfig, preset
from relaygr.models.weights import load_config, open_ranker
from relaygr.training.ranker import RankerTrainer, ranker_config

SYNTH = SynthSpec(
    users=300,
    mean_length=1800,
    length_sigma=0.5,
    max_length=4000,
    items=2000,
    clusters=20,
    taste=0.85,
    focus=0.9,
    repeat_rate=0.3,
)
# Short windows and few negatives: many positives, which is what a minute of training lacks.
TRAIN = TrainConfig(
    batch_users=16,
    cuts=32,
    negatives=8,
    min_history=32,
    max_history=192,
    warmup_steps=20,
    lr=5e-3,
    table_lr=0.1,
    eval_every_steps=100,
    eval_requests=100,
    patience=0,
)
DEFAULT_STEPS = 240
_WARM_UP = 3

Observe = Callable[[str, float, str], None]


@dataclass(frozen=True, slots=True)
class DemoSpec:
    """What to show.

    Attributes:
        events, model: folders; None makes or trains one.
        git: a repository whose history becomes the events; not together with `events`.
        synth: the events to make.
        train: of the training run; ending by steps makes it reproducible.
        requests: held-out requests to replay.
        lead_ms: modelled upstream work between retrieval and ranking.
        history: use only so many latest events; 0 uses all.
        large_preset, large_requests: also time a larger model with random weights; an empty name does not.
    """

    out: Path
    events: Path | None = None
    git: Path | None = None
    model: Path | None = None
    synth: SynthSpec = SYNTH
    train: TrainConfig = TRAIN
    preset: str = "hstu-tiny"
    dtype: Literal["fp32", "bf16", "auto"] = "fp32"
    requests: int = 200
    lead_ms: float = 80.0
    history: int = 0
    large_preset: str = "hstu-small"
    large_requests: int = 24
    seed: int = 0
    command: str = ""


def train_settings(max_minutes: float, max_steps: int | None, seed: int) -> TrainConfig:
    """Settings of the short training run; `max_steps` of None takes as many as usually fit."""
    steps = DEFAULT_STEPS if max_steps is None else max_steps
    return msgspec.structs.replace(TRAIN, max_minutes=max_minutes, max_steps=steps, seed=seed)


def run_demo(spec: DemoSpec, observe: Observe) -> DemoReport:
    """Do all of it; writes OUT/events and OUT/model unless they were given.

    Args:
        observe: called with a step, the share of it that is done, and what there is to say.

    Raises:
        ConfigError: an option, the events or the model is wrong.
    """
    begun = time.monotonic()
    _check(spec)
    observe("events", 0.0, "")
    events = _events(spec)
    observe("events", 1.0, f"{events.n_events:,} of {events.n_users:,} users")
    split = temporal_split(events)
    items = catalogue(events, split)
    size = ranker_config(preset(spec.preset), events, spec.train)
    served = size if spec.model is None else load_config(spec.model)
    visits = held_out_visits(events, split, served, spec.requests, spec.seed, spec.history)
    observe("threads", 0.0, "")
    threads, threads_ms = pick_threads(size, spec.seed)
    torch.set_num_threads(threads)
    observe("threads", 1.0, f"{threads}, ms by number: {threads_ms}")
    training = None if spec.model is not None else _train(spec, events, size, observe)
    folder = spec.model or spec.out / "model"
    choice = choose("auto", spec.dtype)
    model, model_fp = open_ranker(folder, choice.dtype)
    engine = Engine(model, model_fp, choice, SETTINGS)

    retriever = Retriever(items, item_vectors(model, choice.kernel, items.items), RetrievalSpec())
    laps = _replay(Cascade(engine, retriever, spec.lead_ms), visits, f"replay, {spec.preset}", observe)
    name = spec.preset if spec.model is None else str(folder)
    weights = "trained" if spec.model is None else "given"
    sections = [_section(engine, name, weights, visits, laps)]
    if spec.large_preset and spec.large_requests:
        sections.append(_large(spec, retriever, visits, events, observe))
    inline = laps[Mode.INLINE]
    return DemoReport(
        relaygr=__version__,
        command=spec.command,
        seed=spec.seed,
        machine=machine_note(threads, threads_ms),
        data=data_note(events, split.train_end_s, split.valid_end_s),
        training=training,
        cascade=cascade_note(spec.lead_ms, retriever, visits, inline),
        latency=tuple(sections),
        quality=quality(visits, inline, retriever),
        seconds=time.monotonic() - begun,
    )


def _check(spec: DemoSpec) -> None:
    """Options that would fail after minutes."""
    if spec.events is not None and spec.git is not None:
        raise ConfigError("git", f"{spec.git} and events, {spec.events}, are both given; take one")
    if not 0 <= spec.lead_ms <= 10_000:
        raise ConfigError("lead_ms", f"{spec.lead_ms} is outside [0, 10000]")
    for name, low, high in (
        ("requests", 1, 1_000_000),
        ("history", 0, 1_000_000),
        ("large_requests", 0, 1_000_000),
    ):
        count = getattr(spec, name)
        if not low <= count <= high:
            raise ConfigError(name, f"{count} is outside [{low}, {high}]")
    for name, value in (("preset", spec.preset), ("large_preset", spec.large_preset or spec.preset)):
        try:
            preset(value)
        except ConfigError as error:
            raise ConfigError(name, str(error).removeprefix(f"{error.path}: ")) from error


def _events(spec: DemoSpec) -> Events:
    if spec.events is not None:
        return open_events(spec.events)
    if spec.git is not None:
        return git_events(spec.out / "events", spec.git, spec.seed)
    return synthetic_events(spec.out / "events", spec.synth)


def _train(spec: DemoSpec, events: Events, size: AnyConfig, observe: Observe) -> TrainingNote:
    trainer = RankerTrainer(events, spec.out / "model", size, spec.train, choose("cpu", "fp32").kernel)
    report = trainer.run(
        lambda now: observe(f"train {spec.preset}", now.done, f"step {now.step}, loss {now.loss:.3f}")
    )
    best = report.best
    return TrainingNote(
        preset=spec.preset,
        steps=report.steps,
        seconds=report.elapsed_s,
        stopped=report.stopped,
        reproducible=report.stopped != "time",
        valid_ndcg=best.ndcg if best else None,
        valid_hr=best.hr if best else None,
        valid_auc=best.auc if best else None,
    )


def _replay(cascade: Cascade, visits: list[Visit], step: str, observe: Observe) -> dict[Mode, list[Lap]]:
    for visit in visits[:_WARM_UP]:
        for mode in Mode:
            cascade.run(visit, mode)
    total = len(visits)
    return replay(cascade, visits, lambda done: observe(step, done / total, f"{done} of {total} requests"))


def _large(
    spec: DemoSpec, retriever: Retriever, visits: list[Visit], events: Events, observe: Observe
) -> LatencySection:
    torch.manual_seed(spec.seed)
    engine = random_engine(ranker_config(preset(spec.large_preset), events, spec.train), spec.dtype)
    some = by_length(visits, spec.large_requests)
    step = f"replay, {spec.large_preset}"
    laps = _replay(Cascade(engine, retriever, spec.lead_ms), some, step, observe)
    return _section(engine, spec.large_preset, "random", some, laps)


def _section(
    engine: Engine, name: str, weights: str, visits: list[Visit], laps: dict[Mode, list[Lap]]
) -> LatencySection:
    times = {mode: tuple(round(lap.rank_ms, 3) for lap in run) for mode, run in laps.items()}
    return LatencySection(
        model=name,
        weights=weights,
        parameters=sum(each.numel() for each in engine.model.parameters()),
        dtype=engine.choice.dtype_name,
        kernel=engine.choice.kernel.name,
        modes=mode_stats(laps, range(len(visits))),
        buckets=buckets(laps, visits),
        history_tokens=tuple(lap.rank_computed + lap.rank_cached for lap in laps[Mode.INLINE]),
        inline_ms=times[Mode.INLINE],
        relay_ms=times[Mode.RELAY],
        returning_ms=times[Mode.RETURNING],
    )
