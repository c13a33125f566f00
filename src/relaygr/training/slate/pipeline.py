"""From a log of lists to what a server loads: step model, evaluator, `one_shot`, and a judge's verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.clock import ManualClock
from relaygr.core.errors import BackendError, ConfigError
from relaygr.listwise.arrays import Int32, Int64
from relaygr.listwise.evaluate import Evaluator, Rescore
from relaygr.listwise.folds import Part, Split, uniform
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.list_net import Arch, ListNet, ListNetConfig
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Pool
from relaygr.listwise.proposal import Budget
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import HeadSpec, StepModel
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.distil import Distillation, distil, make_pools, taught, teachers
from relaygr.training.slate.fit import StepTraining, position_bound, train_step
from relaygr.training.slate.judge import JudgedReport, judged
from relaygr.training.slate.list_fit import ListTraining, calibrated, train_lists
from relaygr.training.slate.read_log import ReadLog
from relaygr.training.slate.rows import training_rows
from relaygr.training.slate.said import Calibrated, calibration
from relaygr.training.slate.shapes import default_config

REPORT = "train_report.json"
SETTINGS = "slate.toml"
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
        for name in ("members", "requests"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"{getattr(self, name)} is below 1")


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
    attributes = options.attributes
    if attributes is None:
        attributes = tuple(log.logs.attributes)
    similarity = log.logs.vectors is not None
    shape = default_config(log.logs.heads, attributes, similarity, options.watch_head)
    shape = msgspec.structs.replace(shape, fold=options.split.fold(Part.STEP))
    observe("step model")
    step_training = msgspec.structs.replace(options.step, seed=options.seed)
    trained = train_step(shape, parts[Part.STEP].logs, step_training)
    trained.model.save(out / "step")
    versions = {"step": trained.model.version}
    model = ListModel(trained.model, value)
    verdict, better = None, False
    evaluator: Evaluator = Rescore([model])
    shot: OneShot | None = None
    nets: tuple[ListNet, ListNet] | None = None
    if options.evaluator:
        nets = _nets(parts, value, trained.model, options, observe)
        for name, net in zip(("evaluator", "judge"), nets, strict=True):
            net.save(out / name)
            versions[name] = net.version
    if options.one_shot:
        observe("one_shot")
        shot = _distilled(parts[Part.EVALUATOR], model, evaluator, attributes, options)
        shot.save(out / "one_shot")
        versions["one_shot"] = shot.version
    if nets is not None and log.candidates[0] is not None:
        observe("judge's verdict")
        verdict = _verdict(parts[Part.JUDGE], model, nets, shot, options)
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
    )
    try:
        (out / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise BackendError(f"cannot write {out / REPORT}: {error.strerror or error}") from error
    return report


def settings_text(out: Path, value: Path, items: Path | None, report: SlateReport) -> str:
    """The section `[slate]` of a server's settings that loads what was trained."""
    lines = ["[slate]", f"value = {_quoted(value)}", f"step = {_quoted(out / 'step')}"]
    if items is not None:
        lines.append(f"items = {_quoted(items)}")
    names = ["greedy", "beam"]
    if items is not None:
        names.append("mmr")
    if "one_shot" in report.versions:
        names.append("one_shot")
        lines.append(f"one_shot = {_quoted(out / 'one_shot')}")
    lines.append(f"generators = [{', '.join(_quoted(each) for each in names)}]")
    if report.better:
        lines.append(f"evaluator = {_quoted(out / 'evaluator')}")
    return "\n".join(lines) + "\n"


def _quoted(text: Path | str) -> str:
    return msgspec.json.encode(str(text)).decode()  # strings of JSON are strings of TOML


def _part(log: ReadLog, split: Split, part: Part) -> ReadLog:
    rows = split.fold(part).rows(log.logs.users)
    if not len(rows):
        raise ConfigError("logs", f"{len(log.logs)} lists leave none for the part {part.value!r}")
    return log.select(rows)


def _halves(log: ReadLog, split: Split) -> tuple[ReadLog, ReadLog]:
    """Lists to learn from, and lists of other users of the same part."""
    learned = uniform(log.logs.users, f"{split.salt}/held out") < _LEARNED
    if learned.all() or not learned.any():
        raise ConfigError("logs", f"{len(log.logs)} lists of a part are too few to hold some out")
    return log.select(np.flatnonzero(learned)), log.select(np.flatnonzero(~learned))


def _nets(
    parts: dict[Part, ReadLog],
    value: ValueFunction,
    step: StepModel,
    options: SlateTraining,
    observe: Observe,
) -> tuple[ListNet, ListNet]:
    """Evaluator and judge."""
    base = ListNetConfig(
        heads=step.config.heads,
        features=step.features.names,
        relations=step.features.attributes,
        similarity=parts[Part.EVALUATOR].logs.vectors is not None,
        window=step.config.window,
        watch_head=step.config.watch_head,
        causal=options.causal,
        members=options.members,
        seed=options.seed,
        fold=options.split.fold(Part.EVALUATOR),
    )
    observe("evaluator")
    learned, held = _halves(parts[Part.EVALUATOR], options.split)
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
    judge, _ = train_lists(other, _halves(parts[Part.JUDGE], options.split)[0].logs, options.lists)
    return net, judge


def _scenes(log: ReadLog, value: ValueFunction, most: int) -> tuple[list[Scene], list[Pool], Int64]:
    """Requests without rules from logged candidates, and their places in the log."""
    plain = Slates(value, mode=Mode.OFF)
    asked = int(np.bincount(log.logs.asked).argmax())  # the most frequent length
    scenes, pools, rows = [], [], []
    for n in range(len(log.logs)):
        pool = log.pool(n) if log.logs.asked[n] == asked and log.logs.page[n] == 0 else None
        if pool is None or len(pool) < asked:
            continue
        pools.append(pool)
        scenes.append(plain.scene(SlateAsk(request_id=f"logged {n}", length=asked), pool))
        rows.append(n)
        if len(rows) == most:
            break
    if not scenes:
        raise ConfigError("candidates", "the log has no first pages with candidates, which this needs")
    return scenes, pools, np.array(rows, dtype=np.int64)


def _distilled(
    log: ReadLog,
    model: ListModel,
    evaluator: Evaluator,
    attributes: tuple[str, ...],
    options: SlateTraining,
) -> OneShot:
    scenes, _, _ = _scenes(log, model.value, options.requests)
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


def _verdict(
    log: ReadLog,
    model: ListModel,
    nets: tuple[ListNet, ListNet],
    shot: OneShot | None,
    options: SlateTraining,
) -> JudgedReport:
    """What the judge says of lists by the step model, by the trained evaluator, and of the pointwise ones."""
    value, held = model.value, _halves(log, options.split)[1]
    net, judge = nets
    scenes, pools, rows = _scenes(held, value, options.requests)
    chosen = TrainedEvaluator(net, value)
    ranked = [np.argsort(scene.columns) for scene in scenes]

    def lists(slates: Slates) -> list[Int32]:
        made = [slates.serve(scene.ask, pool).picks for scene, pool in zip(scenes, pools, strict=True)]
        return [back[picks].astype(np.int32) for back, picks in zip(ranked, made, strict=True)]

    policies = {
        "rescore": lists(Slates(value, model)),
        "evaluator": lists(Slates(value, model, evaluator=chosen)),
        "pointwise": lists(Slates(value, mode=Mode.OFF)),
    }
    selectors = [model.step.lineage, net.lineage]
    if shot is not None:
        free = Budget(ManualClock())
        policies["one_shot"] = [shot.propose(scene, free)[0].picks for scene in scenes]
        selectors.append(shot.lineage)
    return judged(
        TrainedEvaluator(judge, value),
        selectors,
        scenes,
        held.logs.users[rows].tolist(),
        policies,
        {"rescore": Rescore([model]), "evaluator": chosen},
    )
