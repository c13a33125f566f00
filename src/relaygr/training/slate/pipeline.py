"""From a log of lists to what a server loads: step model, evaluator, `one_shot`, and a judge's verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from relaygr.config.limits import Range
from relaygr.core.errors import BackendError, ConfigError
from relaygr.listwise.evaluate import Evaluator, Rescore
from relaygr.listwise.folds import Part, Split, uniform
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.list_net import Arch, ListNet, ListNetConfig
from relaygr.listwise.lists import ListModel
from relaygr.listwise.step import HeadSpec, StepModel
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.distil import Distillation, distil, make_pools, taught, teachers
from relaygr.training.slate.fit import StepTraining, position_bound, train_step
from relaygr.training.slate.judge import JudgedReport
from relaygr.training.slate.learnable import check_learnable
from relaygr.training.slate.list_fit import ListTraining, calibrated, train_lists
from relaygr.training.slate.read_log import ReadLog
from relaygr.training.slate.rows import training_rows
from relaygr.training.slate.said import Calibrated, calibration
from relaygr.training.slate.shapes import default_config
from relaygr.training.slate.verdict import logged_requests, verdict_of

REPORT = "train_report.json"
SETTINGS = "slate.toml"
STEP, EVALUATOR, JUDGE, ONE_SHOT = "step", "evaluator", "judge", "one_shot"
WRITTEN = (STEP, EVALUATOR, JUDGE, ONE_SHOT, REPORT, SETTINGS)
_LEARNED = 0.8  # of the users of evaluator and judge; the others calibrate and are judged
_JUDGE_SEED = 1  # added to the seed
_REQUESTS = 1500  # that are distilled, and that are judged

Observe = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateTraining:
    """What to train.

    Attributes:
        attributes: of items that models see; None for all that the item table has.
        watch_head: what the feature `watch` sums up.
        evaluator: train an ensemble of list nets, and a judge that compares it with the step model.
        members: of the ensemble; causal: False for grids.
        one_shot: distil the generator.
        alpha: of the conformal quantiles.
        requests: that are distilled, and that are judged, at most.
    """

    attributes: tuple[str, ...] | None = None
    watch_head: str | None = None
    evaluator: bool = False
    members: int = 5
    causal: bool = True
    one_shot: bool = False
    alpha: float = 0.1
    requests: int = _REQUESTS
    split: Split = field(default_factory=Split)
    step: StepTraining = field(default_factory=StepTraining)
    lists: ListTraining = field(default_factory=ListTraining)
    distillation: Distillation = field(default_factory=Distillation)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, limit in (
            ("members", Range(1, 100)),
            ("requests", Range(1, 1_000_000)),
            ("seed", StepTraining.LIMITS["seed"]),
        ):
            limit.check(name, getattr(self, name))


class SlateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        lists: logged lists of each part of the split; explored: those with propensities.
        loss: mean negative log-likelihood of the step model's last epoch; rows: consumed positions.
        unidentified: features that position and surface determine in these logs, so that a user who did not
            look and one who was tired are the same.
        position_control: whether offsets by position took that share and were dropped, or features kept it.
        calibration: of the step model, on lists of the evaluator's users.
        versions: of what was written, by folder.
        judged: policies compared by the judge; None without one.
        better: whether the trained evaluator chooses better lists than the step model, says the judge.
        unjudged: why there is an evaluator and a judge but no verdict; empty otherwise.
    """

    lists: dict[str, int]
    explored: int
    loss: float
    rows: int
    unidentified: tuple[str, ...]
    position_control: bool
    calibration: Calibrated
    versions: dict[str, str]
    judged: JudgedReport | None = None
    better: bool = False
    unjudged: str = ""


def train_slate(
    log: ReadLog, value: ValueFunction, out: Path, options: SlateTraining, observe: Observe
) -> SlateReport:
    """Train, compare, and write everything below `out`.

    Raises:
        ConfigError: the log lacks what is asked for; names it.
        BackendError: the file system refuses.
    """
    if value.heads != log.logs.heads:
        raise ConfigError("value", f"{value.heads} are not the heads of the log, {log.logs.heads}")
    parts = {part: _part(log, options.split, part) for part in Part}
    check_learnable(parts[Part.STEP].logs, _fold_name(Part.STEP), value.reads)
    halves: dict[Part, tuple[ReadLog, ReadLog]] = {}
    if options.evaluator:
        for part in (Part.EVALUATOR, Part.JUDGE):
            halves[part] = _halves(parts[part], options.split, part)
            check_learnable(halves[part][0].logs, f"{_fold_name(part)} that it learns from", value.reads)
    attributes = options.attributes
    if attributes is None:
        attributes = tuple(log.logs.attributes)
    similarity = log.logs.vectors is not None
    shape = default_config(log.logs.heads, attributes, similarity, options.watch_head)
    shape = msgspec.structs.replace(shape, fold=options.split.fold(Part.STEP))
    observe("step model")
    step_training = msgspec.structs.replace(options.step, seed=options.seed)
    trained = train_step(shape, parts[Part.STEP].logs, step_training)
    trained.model.save(out / STEP)
    versions = {STEP: trained.model.version}
    model = ListModel(trained.model, value)
    verdict, better, unjudged = None, False, ""
    evaluator: Evaluator = Rescore([model])
    shot: OneShot | None = None
    nets: tuple[ListNet, ListNet] | None = None
    if options.evaluator:
        nets = _nets(halves, value, trained.model, options, observe)
        for name, net in zip((EVALUATOR, JUDGE), nets, strict=True):
            net.save(out / name)
            versions[name] = net.version
    if options.one_shot:
        observe("one_shot")
        shot = _distilled(parts[Part.EVALUATOR], model, evaluator, attributes, options)
        shot.save(out / ONE_SHOT)
        versions[ONE_SHOT] = shot.version
    if nets is not None:
        held = halves[Part.JUDGE][1]
        requests = logged_requests(held, value, options.requests)
        if requests is None:
            unjudged = (
                f"none of the {len(held.logs):,} lists of {_fold_name(Part.JUDGE)} that nobody learned from "
                "is a first page with candidates for a whole list"
            )
        else:
            observe("judge's verdict")
            verdict = verdict_of(held, requests, model, nets, shot)
            better = verdict.row("evaluator").low > 0
    rows = training_rows(trained.model.features, parts[Part.STEP].logs, options.watch_head)
    report = SlateReport(
        lists={part.value: len(found.logs) for part, found in parts.items()},
        explored=int(log.logs.explored.sum()),
        loss=trained.loss,
        rows=trained.rows,
        unidentified=position_bound(trained.model.features, rows)[0],
        position_control=options.step.position_control,
        calibration=calibration(trained.model, parts[Part.EVALUATOR].logs),
        versions=versions,
        judged=verdict,
        better=better,
        unjudged=unjudged,
    )
    try:
        (out / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise BackendError(f"cannot write {out / REPORT}: {error.strerror or error}") from error
    return report


def settings_text(out: Path, value: Path, items: Path | None, report: SlateReport) -> str:
    """The section `[slate]` of a server's settings that loads what was trained."""
    lines = ["[slate]", f"value = {_quoted(value)}", f"step = {_quoted(out / STEP)}"]
    if items is not None:
        lines.append(f"items = {_quoted(items)}")
    names = ["greedy", "beam"]
    if items is not None:
        names.append("mmr")
    if ONE_SHOT in report.versions:
        names.append("one_shot")
        lines.append(f"one_shot = {_quoted(out / ONE_SHOT)}")
    lines.append(f"generators = [{', '.join(_quoted(each) for each in names)}]")
    if report.better:
        lines.append(f"evaluator = {_quoted(out / EVALUATOR)}")
    return "\n".join(lines) + "\n"


def _quoted(text: Path | str) -> str:
    return msgspec.json.encode(str(text)).decode()  # strings of JSON are strings of TOML


def _part(log: ReadLog, split: Split, part: Part) -> ReadLog:
    rows = split.fold(part).rows(log.logs.users)
    if not len(rows):
        raise ConfigError("logs", f"{len(log.logs)} lists leave none for the part {part.value!r}")
    return log.select(rows)


def _fold_name(part: Part) -> str:
    return f"the fold {part.value!r}"


def _halves(log: ReadLog, split: Split, part: Part) -> tuple[ReadLog, ReadLog]:
    """Lists to learn from, and lists of other users of the same part."""
    learned = uniform(log.logs.users, f"{split.salt}/held out") < _LEARNED
    if learned.all() or not learned.any():
        raise ConfigError(
            "logs", f"{len(log.logs)} lists of {_fold_name(part)} are too few to hold those of some users out"
        )
    return log.select(np.flatnonzero(learned)), log.select(np.flatnonzero(~learned))


def _nets(
    halves: dict[Part, tuple[ReadLog, ReadLog]],
    value: ValueFunction,
    step: StepModel,
    options: SlateTraining,
    observe: Observe,
) -> tuple[ListNet, ListNet]:
    """Evaluator and judge."""
    learned, held = halves[Part.EVALUATOR]
    base = ListNetConfig(
        heads=step.config.heads,
        features=step.features.names,
        relations=step.features.attributes,
        similarity=learned.logs.vectors is not None,
        window=step.config.window,
        watch_head=step.config.watch_head,
        causal=options.causal,
        members=options.members,
        seed=options.seed,
        fold=options.split.fold(Part.EVALUATOR),
    )
    observe("evaluator")
    net, _ = train_lists(base, learned.logs, options.lists)
    net = calibrated(net, value, held.logs, options.alpha)
    observe("judge")
    other = msgspec.structs.replace(
        base,
        arch=Arch.RECURRENT,
        members=1,
        seed=options.seed + _JUDGE_SEED,
        fold=options.split.fold(Part.JUDGE),
    )
    judge, _ = train_lists(other, halves[Part.JUDGE][0].logs, options.lists)
    return net, judge


def _distilled(
    log: ReadLog,
    model: ListModel,
    evaluator: Evaluator,
    attributes: tuple[str, ...],
    options: SlateTraining,
) -> OneShot:
    found = logged_requests(log, model.value, options.requests)
    if found is None:
        raise ConfigError(
            "candidates",
            f"none of the {len(log.logs):,} lists of {_fold_name(Part.EVALUATOR)} is a first page with "
            "candidates for a whole list, which one_shot needs",
        )
    scenes = found[0]
    config = OneShotConfig(
        heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in model.value.heads),
        attributes=attributes,
        similarity=scenes[0].pool.vectors is not None,
        fold=options.split.fold(Part.EVALUATOR),
    )
    pools = make_pools(scenes, config)
    lessons = taught(pools, teachers(model, config.top, config.similarity), evaluator)
    training = msgspec.structs.replace(options.distillation, seed=options.seed)
    return distil(config, pools, lessons, training)
