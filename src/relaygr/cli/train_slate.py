"""`relaygr train slate`: models of lists from logged lists, and what they are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.config.limits import Range
from relaygr.config.paths import check_folder
from relaygr.core.errors import BackendError, ConfigError
from relaygr.listwise.items import read_items
from relaygr.listwise.value import load_value
from relaygr.training.slate.fit import StepTraining
from relaygr.training.slate.pipeline import (
    SETTINGS,
    WRITTEN,
    SlateReport,
    SlateTraining,
    settings_text,
    train_slate,
)
from relaygr.training.slate.read_log import read_log
from relaygr.training.slate.replaced import check_not_inside, replaced
from relaygr.training.slate.simulated import ITEMS, LOGS, MOST_LISTS, VALUE_FILE, write_world
from relaygr.training.slate.world import World, WorldConfig


class Source(NamedTuple):
    """What is read."""

    logs: Path
    items: Path | None
    value: Path


def slate(
    *,
    out: Path,
    logs: Path | None = None,
    items: Path | None = None,
    value: Path | None = None,
    simulate: int | None = None,
    evaluator: Annotated[bool, Parameter(negative="")] = False,
    members: int | None = None,
    grid: Annotated[bool, Parameter(negative="")] = False,
    one_shot: Annotated[bool, Parameter(negative="")] = False,
    watch_head: str | None = None,
    position_control: Annotated[bool, Parameter(negative="")] = False,
    allow_unexplored: Annotated[bool, Parameter(negative="")] = False,
    seed: int = 0,
) -> None:
    """Train the models of the list layer, each on users of its own, and print what they are worth.

    Parameters
    ----------
    out: Path
        Folder: step/, with the options evaluator/, judge/ and one_shot/, train_report.json, and slate.toml,
        the settings of a server that loads them. They replace those of an earlier training all at once.
    logs: Path | None
        Folder of logged lists: log.json and lists-N.jsonl.
    items: Path | None
        Item table of the logged items (.npz, .csv or .parquet): attributes and vectors.
    value: Path | None
        File of the value function.
    simulate: int | None
        Instead of LOGS: write so many lists of a simulated world below OUT, with items and a value function.
    evaluator: bool
        Also train an ensemble that values whole lists, and an independent judge; the ensemble goes into
        slate.toml if the judge says that it chooses better lists than the step model.
    members: int | None
        Of that ensemble (5), with --evaluator.
    grid: bool
        Items further down change what is above them: the evaluator reads the whole list; with --evaluator.
    one_shot: bool
        Also distil the generator of that name; needs logged candidates.
    watch_head: str | None
        Head that the feature "watch" sums up.
    position_control: bool
        Learn offsets by position that are dropped at serving; features that the logs cannot tell from them
        are named.
    allow_unexplored: bool
        Train although no list was drawn at random.
    seed: int
        Of first weights, of resampled users and of the simulated world.
    """
    check_folder("--out", out)
    if (simulate is None) == (logs is None):
        raise ConfigError("--logs", "or --simulate is needed, and not both")
    for name, given in (("--members", members is not None), ("--grid", grid)):
        if given and not evaluator:
            raise ConfigError(name, "goes with --evaluator, which is not given")
    if simulate is not None:
        Range(1, MOST_LISTS).check("--simulate", simulate)
        for name, path in (("--items", items), ("--value", value)):
            if path is not None:
                raise ConfigError(name, "goes with --logs, not with --simulate, which makes its own")
    elif value is None:
        raise ConfigError("--value", "is needed with --logs")
    for name, path in (("--logs", logs), ("--items", items), ("--value", value)):
        check_not_inside(name, path, out)
    options = SlateTraining(
        watch_head=watch_head,
        evaluator=evaluator,
        members=SlateTraining().members if members is None else members,
        causal=not grid,
        one_shot=one_shot,
        step=StepTraining(position_control=position_control, allow_unexplored=allow_unexplored),
        seed=seed,
    )
    names = WRITTEN if simulate is None else (*WRITTEN, LOGS, ITEMS, VALUE_FILE)
    with replaced(out, names) as fresh:
        named = out.absolute()
        if simulate is not None:
            write_world(fresh, World(WorldConfig(seed=seed)), simulate, seed)
            source = Source(fresh / LOGS, fresh / ITEMS, fresh / VALUE_FILE)
            later = Source(named / LOGS, named / ITEMS, named / VALUE_FILE)
        else:
            assert logs is not None
            assert value is not None
            source = Source(logs, items, value)
            later = Source(logs, None if items is None else items.absolute(), value.absolute())
        report = _train(source, fresh, options)
        text = settings_text(named, later.value, later.items, report)
        try:
            (fresh / SETTINGS).write_text(text)
        except OSError as error:
            raise BackendError(f"cannot write {out / SETTINGS}: {error.strerror or error}") from error
    _tell(Console(), report, out)


def _train(source: Source, folder: Path, options: SlateTraining) -> SlateReport:
    log = read_log(source.logs, None if source.items is None else read_items(source.items))
    errors = Console(stderr=True)
    return train_slate(
        log,
        load_value(source.value, log.logs.heads),
        folder,
        options,
        lambda what: errors.print(f"training: {what}", markup=False),
    )


def _tell(console: Console, report: SlateReport, out: Path) -> None:
    parts = ", ".join(f"{count:,} for {part}" for part, count in report.lists.items())
    console.print(
        escape(
            f"{out}: lists by users: {parts}; {report.explored:,} explored; step model of "
            f"{report.rows:,} consumed positions, loss {report.loss:.4f}"
        ),
        soft_wrap=True,
    )
    console.print(_calibration(report))
    errors = ", ".join(f"{name} {each:.4f}" for name, each in report.calibration.ece.items())
    console.print(escape(f"calibration error over ten bins: {errors}"), soft_wrap=True)
    names = ", ".join(report.unidentified) or "none"
    taken = "dropped at serving" if report.position_control else "taken for fatigue"
    console.print(
        escape(f"not identified, position bias or fatigue: {names}; that effect is {taken}"), soft_wrap=True
    )
    if report.judged is not None:
        console.print(_judged(report))
        said = "better than" if report.better else "not better than"
        console.print(f"trained evaluator: {said} the step model, says the judge", soft_wrap=True)
    if report.unjudged:
        console.print(escape(f"trained evaluator: not judged: {report.unjudged}"), soft_wrap=True)
    versions = ", ".join(f"{name} {each[:8]}" for name, each in report.versions.items())
    console.print(escape(f"{versions}; settings of a server: {out / SETTINGS}"), soft_wrap=True)


def _calibration(report: SlateReport) -> Table:
    table = Table(title="step model on users that it has not seen")
    for name in ("head", "position", "rows", "said", "seen"):
        table.add_column(name, justify="left" if name == "head" else "right")
    for row in report.calibration.rows:
        table.add_row(row.head, str(row.position), f"{row.rows:,}", f"{row.said:.3f}", f"{row.seen:.3f}")
    return table


def _judged(report: SlateReport) -> Table:
    assert report.judged is not None
    table = Table(title=f"{report.judged.requests:,} requests by an independent judge")
    for name in ("lists by", "judged U", "to rescore, %", "95 %", "selector says"):
        table.add_column(name, justify="left" if name == "lists by" else "right")
    for row in report.judged.rows:
        selected = "" if row.selected is None else f"{row.selected:.3f}"
        bounds = f"{row.low:+.2f} .. {row.high:+.2f}"
        table.add_row(row.policy, f"{row.judged:.3f}", f"{row.gain:+.2f}", bounds, selected)
    return table
