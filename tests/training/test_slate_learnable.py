"""Logs that nothing can be learned from, and what the judge's verdict depends on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.listwise.folds import Part, uniform
from relaygr.listwise.items import read_items
from relaygr.training.slate import read_log as read_log_module
from relaygr.training.slate import rows as rows_module
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.list_fit import ListTraining
from relaygr.training.slate.pipeline import SlateReport, SlateTraining, train_slate
from relaygr.training.slate.read_log import ReadLog, read_log
from relaygr.training.slate.rows import context_of
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.simulated import write_world
from relaygr.training.slate.world import VALUE, World, WorldConfig

QUICK = SlateTraining(
    evaluator=True, members=1, requests=20, step=StepTraining(epochs=2), lists=ListTraining(epochs=1)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("logged")
    write_world(made, World(WorldConfig(items=300, topics=20, candidates=40)), 500, 0)
    return made


@pytest.fixture(scope="module")
def log(folder: Path) -> ReadLog:
    return read_log(folder / "logs", read_items(folder / "items.npz"))


def run(log: ReadLog, out: Path, options: SlateTraining = QUICK) -> SlateReport:
    return train_slate(log, VALUE, out, options, lambda what: None)


def rows_of(log: ReadLog, part: Part, held: bool | None = None) -> Any:
    """Which lists are of a fold; of its users that are held out, or of the others."""
    split = QUICK.split
    found = split.parts(log.logs.users) == list(Part).index(part)
    out = uniform(log.logs.users, f"{split.salt}/held out") >= 0.8
    return found if held is None else found & (out == held)


def without_positions(log: ReadLog, rows: Any) -> ReadLog:
    return replace(log, logs=replace(log.logs, consumed=np.where(rows, 0, log.logs.consumed)))


def test_nothing_consumed_is_nothing_to_learn_from(log: ReadLog, tmp_path: Path) -> None:
    nothing = without_positions(log, np.ones(500, dtype=bool))
    with pytest.raises(ConfigError, match=r"consumed: is 0 in all \d+ lists of the fold 'step'"):
        run(nothing, tmp_path)
    with pytest.raises(ConfigError, match="consumed: is 0 in all 500 lists of the logs"):
        train_step(world_config(), nothing.logs, StepTraining(epochs=2))


@pytest.mark.parametrize("part", [Part.EVALUATOR, Part.JUDGE])
def test_a_fold_without_positions_is_named(log: ReadLog, tmp_path: Path, part: Part) -> None:
    lacking = without_positions(log, rows_of(log, part, held=False))
    with pytest.raises(ConfigError, match=f"consumed: is 0 in all .* lists of the fold '{part.value}'"):
        run(lacking, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_fold_without_labels_or_ends_is_named(log: ReadLog, tmp_path: Path) -> None:
    judge = rows_of(log, Part.JUDGE)
    labels = np.where(judge[:, None, None], np.nan, log.logs.labels)
    with pytest.raises(ConfigError, match=r"labels: of head 'watch' there are none .* the fold 'judge'"):
        run(replace(log, logs=replace(log.logs, labels=labels)), tmp_path)
    shown = np.where(judge, 1, log.logs.shown)
    consumed = np.where(judge, 1, log.logs.consumed)
    more = log.logs.more & ~judge
    with pytest.raises(ConfigError, match=r"never says whether a user left or stayed .* the fold 'judge'"):
        run(replace(log, logs=replace(log.logs, shown=shown, consumed=consumed, more=more)), tmp_path)


def test_the_verdict_depends_on_the_lists_that_are_judged(log: ReadLog, tmp_path: Path) -> None:
    """Whether the first list of the log has candidates says nothing about those that are judged."""
    held = rows_of(log, Part.JUDGE, held=True)
    first_alone = [each if at == 0 and not held[0] else None for at, each in enumerate(log.candidates)]
    assert first_alone[0] is not None
    report = run(replace(log, candidates=first_alone), tmp_path)
    assert report.judged is None
    assert f"none of the {held.sum()} lists of the fold 'judge'" in report.unjudged
    assert not report.better
    judged_alone = [each if held[at] else None for at, each in enumerate(log.candidates)]
    assert judged_alone[0] is None
    report = run(replace(log, candidates=judged_alone), tmp_path)
    assert report.judged is not None
    assert report.unjudged == ""


def test_one_long_list_does_not_take_all_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_log_module, "ARRAY_BYTES", 100_000)
    with pytest.raises(ConfigError, match=r"500 lists of up to 10 items .* bytes as arrays, limit 100,000"):
        read_log(folder / "logs", read_items(folder / "items.npz"))
    monkeypatch.setattr(read_log_module, "TEXT_BYTES", 1000)
    with pytest.raises(ConfigError, match="limit 1,000"):
        read_log(folder / "logs")


def test_long_earlier_pages_are_computed_in_parts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.json").write_bytes((folder / "logs" / "log.json").read_bytes())
    lines = (folder / "logs" / "lists-1.jsonl").read_text().splitlines()[:40]
    made = [json.loads(line) | {"earlier": list(range(at * 3)), "page": 1} for at, line in enumerate(lines)]
    (tmp_path / "lists-1.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in made))
    logs = read_log(tmp_path, read_items(folder / "items.npz")).logs
    features = train_step(world_config(), logs, StepTraining(epochs=1)).model.features
    whole = context_of(features, logs)
    monkeypatch.setattr(rows_module, "_CELLS", 3 * 10 * 127)
    np.testing.assert_array_equal(context_of(features, logs), whole)
