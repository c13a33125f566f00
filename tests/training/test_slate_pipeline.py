"""From a log on disk to what a server loads, and the judge's report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.folds import Part
from relaygr.listwise.generators.one_shot import OneShot
from relaygr.listwise.items import read_items
from relaygr.listwise.list_net import Arch, ListNet, ListNetConfig
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head
from relaygr.listwise.request import Mode
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import HeadSpec, StepModel
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.training.slate.distil import Distillation
from relaygr.training.slate.fit import StepTraining
from relaygr.training.slate.gain_methods import ask
from relaygr.training.slate.judge import judged
from relaygr.training.slate.list_fit import ListTraining, train_lists
from relaygr.training.slate.pipeline import SlateReport, SlateTraining, settings_text, train_slate
from relaygr.training.slate.read_log import ReadLog, read_log, records_of
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.simulated import write_world
from relaygr.training.slate.world import VALUE, World, WorldConfig

TINY = World(WorldConfig(items=300, topics=20, candidates=40))
QUICK = SlateTraining(
    evaluator=True,
    members=2,
    one_shot=True,
    requests=40,
    step=StepTraining(epochs=2),
    lists=ListTraining(epochs=2),
    distillation=Distillation(epochs=2),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("logged")
    write_world(made, TINY, 600, 0)
    return made


@pytest.fixture(scope="module")
def log(folder: Path) -> ReadLog:
    return read_log(folder / "logs", read_items(folder / "items.npz"))


def test_a_log_is_read_as_it_was_written(log: ReadLog) -> None:
    requests = TINY.requests(600, 11_000_003)
    wanted = explored_logs(requests, 0).logs
    for name in ("items", "outputs", "labels", "shown", "consumed", "more", "asked", "log_propensity"):
        np.testing.assert_array_equal(getattr(log.logs, name), getattr(wanted, name), err_msg=name)
    np.testing.assert_array_equal(log.logs.attributes["topic"], wanted.attributes["topic"])
    assert log.logs.vectors is not None
    assert wanted.vectors is not None
    # Vectors of a table have one more component, for items that it lacks.
    np.testing.assert_allclose(log.logs.vectors[..., :-1], wanted.vectors, atol=1e-6)
    pool = log.pool(7)
    assert pool is not None
    assert pool.ids.tolist() == requests.items[7].tolist()
    assert len(np.unique(log.logs.users)) == 600
    again = records_of(log.logs)
    assert [one.items for one in again] == [tuple(row) for row in wanted.items.tolist()]


def test_everything_is_trained_on_users_of_its_own(log: ReadLog, tmp_path: Path) -> None:
    seen: list[str] = []
    report = train_slate(log, VALUE, tmp_path, QUICK, seen.append)
    assert seen == ["step model", "evaluator", "judge", "one_shot", "judge's verdict"]
    step, shot = StepModel.load(tmp_path / "step"), OneShot.load(tmp_path / "one_shot")
    net, judge = ListNet.load(tmp_path / "evaluator"), ListNet.load(tmp_path / "judge")
    folds = [each.lineage.fold for each in (step, net, judge)]
    assert [fold.part for fold in folds if fold is not None] == list(Part)
    assert shot.lineage.fold == net.lineage.fold
    assert net.config.arch is not judge.config.arch
    assert net.config.seed != judge.config.seed
    assert net.config.members == 2
    assert net.config.calibration is not None
    assert sum(report.lists.values()) == 600 == report.explored
    # Every feed of this log begins alike, so that place and position are the same.
    assert report.unidentified == ("position", "session")
    assert {row.head for row in report.calibration.rows} == {"watch", "exit"}
    assert report.judged is not None
    assert [row.policy for row in report.judged.rows] == ["rescore", "evaluator", "pointwise", "one_shot"]
    assert report.judged.row("rescore").gain == 0.0
    assert report.judged.row("evaluator").disagreement is not None
    on_disk = msgspec.json.decode((tmp_path / "train_report.json").read_bytes(), type=SlateReport)
    assert on_disk == report
    assert report.versions["evaluator"] == net.version
    again = train_slate(log, VALUE, tmp_path / "again", QUICK, seen.append)
    assert again.versions == report.versions


def test_settings_name_the_evaluator_only_if_it_is_better(log: ReadLog, tmp_path: Path) -> None:
    plain = train_slate(log, VALUE, tmp_path, replace(QUICK, evaluator=False), lambda what: None)
    assert plain.judged is None
    text = settings_text(tmp_path, tmp_path / "v.json", None, plain)
    assert "evaluator" not in text
    assert "mmr" not in text
    better = msgspec.structs.replace(plain, better=True)
    text = settings_text(tmp_path, tmp_path / "v.json", tmp_path / "i.npz", better)
    assert f'evaluator = "{tmp_path}/evaluator"' in text


def test_a_judge_that_is_a_selector_is_refused(log: ReadLog, tmp_path: Path) -> None:
    train_slate(log, VALUE, tmp_path, QUICK, lambda what: None)
    step = StepModel.load(tmp_path / "step")
    net, judge = ListNet.load(tmp_path / "evaluator"), ListNet.load(tmp_path / "judge")
    requests = TINY.requests(5, 3)
    plain, model = Slates(VALUE, mode=Mode.OFF), ListModel(step, VALUE)
    scenes = [plain.scene(ask(requests, n), requests.pool(n)) for n in range(5)]
    lists = {"pointwise": [scene.fallback for scene in scenes if scene.fallback is not None]}
    users = requests.users.tolist()
    report = judged(TrainedEvaluator(judge, VALUE), [step.lineage, net.lineage], scenes, users, lists)
    assert report.rows[0].judged > 0
    with pytest.raises(ConfigError, match="selector itself"):
        judged(TrainedEvaluator(judge, VALUE), [judge.lineage], scenes, users, lists)
    one = msgspec.structs.replace(judge.config, fold=net.config.fold)
    with pytest.raises(ConfigError, match="same users"):
        judged(TrainedEvaluator(ListNet(one, judge.tensors), VALUE), [net.lineage], scenes, users, lists)
    untold = StepModel(msgspec.structs.replace(step.config, fold=None), step.tensors)
    with pytest.raises(ConfigError, match="not known"):
        judged(TrainedEvaluator(judge, VALUE), [untold.lineage], scenes, users, lists)
    with pytest.raises(ConfigError, match="lists for"):
        judged(TrainedEvaluator(judge, VALUE), [net.lineage], scenes, users, {"x": lists["pointwise"][:2]})
    assert Rescore([model]).version != report.judge


def test_what_does_not_fit_is_told(log: ReadLog, tmp_path: Path) -> None:
    def run(changed: ReadLog, options: SlateTraining = QUICK) -> None:
        train_slate(changed, VALUE, tmp_path, options, lambda what: None)

    with pytest.raises(ConfigError, match="leave none"):
        run(log.select(np.arange(1)))
    unknown = np.full_like(log.logs.log_propensity, np.nan)
    with pytest.raises(ConfigError, match="log_propensity"):
        run(replace(log, logs=replace(log.logs, log_propensity=unknown)))
    with pytest.raises(ConfigError, match="candidates"):
        run(replace(log, candidates=[None] * 600))
    with pytest.raises(ConfigError, match="value"):
        run(replace(log, logs=replace(log.logs, heads=(Head("other"),))))
    with pytest.raises(ConfigError, match="members"):
        replace(QUICK, members=0)


def test_architectures_share_what_they_read(log: ReadLog) -> None:
    """A recurrent net without cosines and attributes trains on logs that have none."""
    bare = replace(log.logs, vectors=None, attributes={})
    config = ListNetConfig(
        heads=(HeadSpec(name="watch"),), features=("position",), arch=Arch.RECURRENT, width=4
    )
    net, _ = train_lists(config, bare, ListTraining(epochs=1))
    assert net.config == config
    assert json.loads(msgspec.json.encode(config))["arch"] == "recurrent"
