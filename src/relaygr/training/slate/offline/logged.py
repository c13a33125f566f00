"""The protocol on a log of served lists: which lists it may use, and with which judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from relaygr.config.limits import Range
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Int32, Int64
from relaygr.listwise.artefact import weights_of
from relaygr.listwise.folds import Fold, Lineage, Part, Split
from relaygr.listwise.items import ItemTable
from relaygr.listwise.list_net import NAME as NET
from relaygr.listwise.list_net import ListNet
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import HeadKind, Pool
from relaygr.listwise.request import MAX_LENGTH
from relaygr.listwise.step import NAME as STEP
from relaygr.listwise.step import HeadSpec, StepModel
from relaygr.listwise.trust import Trust
from relaygr.listwise.value import ValueFunction, load_value
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.offline.drawn import drawn_alike
from relaygr.training.slate.offline.explored import Explored
from relaygr.training.slate.offline.judge import ListJudge, NetJudge, StepJudge
from relaygr.training.slate.offline.linear_judge import NAME as LINEAR
from relaygr.training.slate.offline.linear_judge import LinearConfig, LinearJudge, fit_linear
from relaygr.training.slate.offline.policies import Softmax
from relaygr.training.slate.offline.protocol import (
    EvalSlateOptions,
    Observe,
    Requested,
    evaluate_slates,
    ignore,
)
from relaygr.training.slate.offline.relevance import check_head
from relaygr.training.slate.offline.report import SlateReport
from relaygr.training.slate.read_log import ReadLog, read_log

_NO_EXPLORATION = (
    "what other lists would have brought: no list has propensities, so that nothing is estimable off policy"
)
_NO_JUDGE = (
    "what lists of methods are worth: there is no judge; one is fitted where all models record the same "
    "split of the users, some of them are in the judge's fold, and all heads are binary"
)
_NO_CANDIDATES = "lists of methods: no list was logged with its candidates"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedOptions:
    """What to read and to use.

    Attributes:
        requests: most logged requests that lists are made for.
        length: of lists; 0 for what each request had asked for most often.
        relevance_head: None for none.
        as_drawn: take the policy of explored lists, and their trust region, from the log where it tells them.
    """

    requests: int = 500
    length: int = 0
    relevance_head: str | None = None
    as_drawn: bool = True
    evaluation: EvalSlateOptions = field(default_factory=EvalSlateOptions)

    def __post_init__(self) -> None:
        Range(1, 1_000_000).check("requests", self.requests)
        Range(0, MAX_LENGTH).check("length", self.length)


def logged_report(
    folder: Path,
    value_file: Path,
    model_folders: Sequence[Path],
    judge_folder: Path | None = None,
    table: ItemTable | None = None,
    options: LoggedOptions | None = None,
    observe: Observe = ignore,
) -> SlateReport:
    """Evaluate step models on a log.

    Without a judge's folder a linear judge is fitted to the users of the judge's fold of the models' split.
    Lists of the folds of selector and judge are left out of everything else.

    Raises:
        ConfigError: what is read does not fit, or the judge is not independent.
    """
    options = options or LoggedOptions()
    observe("reading")
    log = read_log(folder, table)
    value = load_value(value_file, log.logs.heads)
    options.evaluation.base.check(value.heads)
    if options.relevance_head is not None:
        check_head(value.heads, options.relevance_head)
    steps = open_models(model_folders)
    selectors = [one.lineage for one in steps]
    judge = (
        open_judge(judge_folder, value) if judge_folder is not None else _fitted(log.logs, value, selectors)
    )
    taken = [one.fold for one in (*selectors, *([] if judge is None else [judge.lineage])) if one.fold]
    aside = log.select(unseen(log.logs.users, taken))
    cannot = list[str]()
    if judge is None:
        cannot.append(_NO_JUDGE)
    explored, evaluation = None, options.evaluation
    rows = with_candidates(aside)
    if not len(rows):
        raise ConfigError(str(folder), _NO_CANDIDATES)
    asked = _requested(aside, rows[: options.requests], options.length)
    if aside.logs.explored[rows].any():
        alike = drawn_alike(aside, rows, value.version, evaluation.rules, options.as_drawn)
        cannot += alike.notes
        if alike.drawn is not None:
            base, trust = Softmax(temperature=alike.drawn.temperature), Trust(alike.drawn.top)
            evaluation = replace(evaluation, base=base, trust=trust)
        if len(alike.rows):
            explored = _explored(aside, alike.rows)
    else:
        cannot.append(_NO_EXPLORATION)
    return evaluate_slates(
        str(folder.name),
        [ListModel(one, value) for one in steps],
        selectors,
        asked,
        judge=judge,
        explored=explored,
        held_out=aside.logs,
        relevance_head=options.relevance_head,
        cannot=tuple(cannot),
        options=evaluation,
        observe=observe,
    )


def open_models(folders: Sequence[Path]) -> list[StepModel]:
    """Step models of the seeds of one training.

    Raises:
        ConfigError: there is none, or two are the same; naming their folders.
    """
    if not folders:
        raise ConfigError("--model", "none is given")
    made, known = list[StepModel](), dict[str, Path]()
    for folder in folders:
        try:
            made.append(StepModel.load(folder))
        except ConfigError as error:
            raise ConfigError("--model", f"{folder}: {error}") from error
        weights = weights_of(made[-1].tensors)
        if weights in known:
            raise ConfigError(
                "--model",
                f"{folder} has the weights of {known[weights]}: one training is one seed, however often",
            )
        known[weights] = folder
    return made


def open_judge(folder: Path, value: ValueFunction) -> ListJudge:
    """A list net, a linear judge or a step model from a folder.

    Raises:
        ConfigError: there is none, or it does not fit.
    """
    if (folder / f"{NET}.json").exists():
        return NetJudge(ListNet.load(folder), value)
    if (folder / f"{LINEAR}.json").exists():
        return LinearJudge.load(folder, value)
    if (folder / f"{STEP}.json").exists():
        return StepJudge(StepModel.load(folder), value)
    raise ConfigError("--judge", f"{folder} has none of {NET}.json, {LINEAR}.json and {STEP}.json")


def _fitted(logs: LoggedLists, value: ValueFunction, selectors: Sequence[Lineage]) -> ListJudge | None:
    """A judge from the users of the judge's fold; None where no split is recorded or heads are not binary."""
    splits = [None if one.fold is None else one.fold.split for one in selectors]
    split = splits[0]
    if split is None or any(each != split for each in splits):
        return None
    if any(head.kind is not HeadKind.BINARY for head in value.heads):
        return None
    rows = split.fold(Part.JUDGE).rows(logs.users)
    if not len(rows):
        return None
    some = logs.select(rows)
    leaves = some.leaves()
    config = LinearConfig(
        heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in value.heads),
        features=judge_features(some),
        exit=bool((leaves == 1).any()),
        fold=split.fold(Part.JUDGE),
    )
    return fit_linear(config, some, value)


def judge_features(logs: LoggedLists) -> tuple[str, ...]:
    """What a linear judge reads of logs: similarities if there are vectors, and every attribute."""
    names = ["position"]
    if logs.vectors is not None:
        names += ["similarity:max", "similarity:mean"]
    for name in logs.attributes:
        names += [f"count:{name}", f"recency:{name}"]
    return tuple(names)


def unseen(users: Int64, folds: Sequence[Fold]) -> Int64:
    """Lists of users that are in none of the folds.

    Raises:
        ConfigError: nothing is left.
    """
    splits: list[Split] = [one.split for one in folds]
    left = np.ones(len(users), dtype=bool)
    for split, fold in zip(splits, folds, strict=True):
        left &= split.parts(users) != list(Part).index(fold.part)
    rows = np.flatnonzero(left)
    if not len(rows):
        raise ConfigError("--logs", "all lists are of users that selector or judge learned from")
    return rows


def with_candidates(log: ReadLog) -> Int64:
    """First pages whose candidates were kept."""
    first = log.logs.page == 0
    if log.logs.earlier is not None:
        first &= ~log.logs.earlier.there.any(axis=1)
    kept = np.array([one is not None for one in log.candidates], dtype=bool)
    return np.flatnonzero(first & kept)


def _pools(log: ReadLog, rows: Int64) -> list[Pool]:
    made = [log.pool(n) for n in rows.tolist()]
    return [one for one in made if one is not None]


def _first_pages(logs: LoggedLists, rows: Int64) -> LoggedLists:
    return replace(logs.select(rows), earlier=None)


def _requested(log: ReadLog, rows: Int64, length: int) -> Requested:
    logs = _first_pages(log.logs, rows)
    asked = length or int(np.bincount(logs.asked).argmax())
    pools = _pools(log, rows)
    enough = np.flatnonzero([len(pool) >= asked for pool in pools])
    if not len(enough):
        raise ConfigError("length", f"{asked} is above the candidates of every request")
    _, owner, counts = np.unique(log.logs.users, return_inverse=True, return_counts=True)
    activity: Int64 = counts[owner][rows][enough].astype(np.int64)
    return Requested(
        logs=logs.select(enough), pools=[pools[at] for at in enough], length=asked, activity=activity
    )


def _explored(log: ReadLog, rows: Int64) -> Explored:
    logs, pools = _first_pages(log.logs, rows), _pools(log, rows)
    picks: Int32 = np.full(logs.items.shape, -1, dtype=np.int32)
    for n, pool in enumerate(pools):
        order = np.argsort(pool.ids, kind="stable")
        shown = logs.items[n, : logs.shown[n]]
        picks[n, : len(shown)] = order[np.searchsorted(pool.ids[order], shown)]
    return Explored(logs, pools, picks)
