"""The models of the study: each is trained once, and a finished one is found again by what it was made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from relaygr.bench.length_result import TrainedModel
from relaygr.config.settings import TrainConfig
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.kernels.interface import Kernel
from relaygr.models.presets import preset
from relaygr.models.weights import fingerprint, load_config
from relaygr.training.candidates import Seen
from relaygr.training.checkpoint import data_fingerprint
from relaygr.training.initial import ranker_config
from relaygr.training.ranker import Progress, RankerTrainer
from relaygr.training.report import REPORT_FILE, TrainReport

Observe = Callable[[float, str], None]  # share done, what there is to say


def study_train(train: TrainConfig, caps: tuple[int, ...], seen: Seen) -> TrainConfig:
    """`train` with windows that cover every cap, so that no model reads a length it was not trained on.

    Window lengths are drawn uniformly between the two limits, and the cuts inside a window see less. Where
    no candidate is an item of the history, none has an age, and a model that learns from the ages of its
    training negatives learns what it will never meet.
    """
    return msgspec.structs.replace(
        train,
        min_history=min(train.min_history, caps[0]),
        max_history=max(train.max_history, caps[-1]),
        last_seen=train.last_seen and seen == "keep",
    )


def trained(
    events: Events, folder: Path, size: str, train: TrainConfig, kernel: Kernel, observe: Observe
) -> TrainedModel:
    """The model of `folder`, trained there unless it is finished and was made of the same.

    Equal means: the events, the configuration, every setting of `train`, and the bytes of the weights that
    the run reported. Anything else in `folder` is replaced.

    Raises:
        ConfigError: the size does not exist, or the events are too few to train on.
    """
    # A model reads no more than it was trained on.
    config = ranker_config(preset(size), events, train, train.max_history)
    data = data_fingerprint(events)
    report = _report(folder)
    reused = report is not None and report.data_fingerprint == data and report.train == train
    if report is None or not (reused and _stored(folder) == (config, report.model_fingerprint)):
        reused = False
        trainer = RankerTrainer(events, folder, config, train, kernel)
        report = trainer.run(lambda now: observe(now.done, _words(now)))
    observe(1.0, "found finished" if reused else f"{report.steps:,} steps")
    return TrainedModel(
        folder=f"{folder.parent.name}/{folder.name}",
        seed=train.seed,
        steps=report.steps,
        seconds=report.elapsed_s,
        stopped=report.stopped,
        valid_ndcg=report.best.ndcg if report.best else None,
        fingerprint=report.model_fingerprint,
        reused=reused,
    )


def _report(folder: Path) -> TrainReport | None:
    """What a finished run left; None where none finished, or another release did."""
    try:
        return msgspec.json.decode((folder / REPORT_FILE).read_bytes(), type=TrainReport)
    except (FileNotFoundError, msgspec.DecodeError, ConfigError):
        return None


def _stored(folder: Path) -> tuple[object, str] | None:
    """Configuration and fingerprint of the weights in `folder`, if they can be read."""
    try:
        return load_config(folder), fingerprint(folder).hex()
    except ConfigError:
        return None


def _words(now: Progress) -> str:
    valid = f", valid ndcg@10 {now.latest.ndcg:.4f}" if now.latest else ""
    return f"step {now.step:,}, loss {now.loss:.3f}{valid}"
