"""Judges agree with what serves, are independent of selectors, and are measured on logged lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.listwise.folds import Lineage, Part, Split
from relaygr.listwise.list_net import Arch, ListNet, ListNetConfig
from relaygr.listwise.list_net import shapes as net_shapes
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head, HeadKind
from relaygr.listwise.step import HeadSpec, StepModel, shapes
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction
from relaygr.training.slate.offline.explored import Explored, of_world
from relaygr.training.slate.offline.judge import NetJudge, Predicted, StepJudge, check_independent
from relaygr.training.slate.offline.linear_judge import LinearConfig, LinearJudge, fit_linear
from relaygr.training.slate.offline.quality import (
    expected_calibration_error,
    judge_quality,
    rank_correlation,
    ranks,
)
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.truth import watched
from relaygr.training.slate.world import HEADS, VALUE, World, WorldConfig

SMALL = WorldConfig(items=300, topics=10, authors=30, candidates=20, length=6)
FEATURES = ("similarity:max", "similarity:mean", "count:topic", "recency:topic", "position")
CONFIG = LinearConfig(heads=(HeadSpec(name="watch"),), features=FEATURES)


def logged(lists: int, seed: int) -> Explored:
    requests = World(SMALL).requests(lists, seed)
    return of_world(requests, explored_logs(requests, seed, 0.5))


@pytest.fixture(scope="module")
def some() -> Explored:
    return logged(60, 1)


def test_a_step_judge_values_lists_as_serving_does(some: Explored) -> None:
    random = np.random.default_rng(2)
    config = world_config()
    step = StepModel(
        config,
        {n: (0.5 * random.standard_normal(s)).astype(np.float32) for n, s in shapes(config).items()},
    )
    model, found = ListModel(step, VALUE), StepJudge(step, VALUE).predict(some.logs)
    for n, scene in enumerate(some.scenes(VALUE)):
        picks = np.argsort(scene.columns)[some.picks[n]].astype(np.int32)
        whole = model(scene, picks[None])
        assert found.utility[n] == pytest.approx(whole.utility[0], rel=1e-9)
        assert found.leave[n] == pytest.approx(whole.hazard[0], rel=1e-9)


@pytest.mark.parametrize("arch", list(Arch))
def test_a_net_judge_values_lists_as_the_evaluator_does(some: Explored, arch: Arch) -> None:
    random = np.random.default_rng(3)
    config = ListNetConfig(
        heads=(HeadSpec(name="watch"),),
        features=("count:topic", "position"),
        relations=("topic",),
        arch=arch,
        width=8,
        members=2,
    )
    tensors = {n: (0.3 * random.standard_normal(s)).astype(np.float32) for n, s in net_shapes(config).items()}
    net = ListNet(config, tensors)
    evaluator, found = TrainedEvaluator(net, VALUE), NetJudge(net, VALUE).predict(some.logs)
    for n, scene in enumerate(some.scenes(VALUE)[:20]):
        picks = np.argsort(scene.columns)[some.picks[n]].astype(np.int32)
        assert found.utility[n] == pytest.approx(evaluator.evaluate(scene, picks[None]).mean(), rel=1e-6)


def test_a_linear_judge_finds_what_lists_are_worth() -> None:
    judge = fit_linear(CONFIG, logged(3000, 2).logs, VALUE)
    requests = World(SMALL).requests(400, 3)
    other = of_world(requests, explored_logs(requests, 3, 0.5))
    truth = watched(requests, other.picks)
    found = judge.predict(other.logs)
    assert found.utility.mean() == pytest.approx(truth.utility.mean(), rel=0.06)
    correlation, low, _ = rank_correlation(found.utility, truth.utility, other.logs.users)
    assert correlation is not None
    assert low is not None
    assert correlation > 0.5
    quality = judge_quality(found, other.logs, VALUE)
    watch, leave = quality.heads
    assert (watch.name, leave.name) == ("watch", "exit")
    assert watch.auc is not None
    assert watch.auc > 0.58
    assert watch.log_loss < watch.base_log_loss
    assert watch.ece < 0.06
    assert {each.name for each in watch.positions} >= {"1", "2", "3"}
    assert any(each.name.startswith("similarity:max") for each in watch.contexts)


def test_a_linear_judge_reads_nothing_behind_the_exit(tmp_path: Path) -> None:
    logs = logged(300, 4).logs
    random = np.random.default_rng(0)
    behind = ~logs.observed
    labels = np.where(behind[..., None], random.random(logs.labels.shape), logs.labels).astype(np.float32)
    judge, again = (fit_linear(CONFIG, each, VALUE) for each in (logs, replace(logs, labels=labels)))
    assert judge.lineage.version == again.lineage.version
    judge.save(tmp_path)
    loaded = LinearJudge.load(tmp_path, VALUE)
    assert loaded.lineage == judge.lineage
    assert np.array_equal(loaded.predict(logs).utility, judge.predict(logs).utility)


def test_a_linear_judge_refuses_what_it_cannot_be(some: Explored) -> None:
    heads = (HeadSpec(name="watch_s", kind=HeadKind.REGRESSION),)
    with pytest.raises(ConfigError, match="'watch_s' is a regression"):
        fit_linear(LinearConfig(heads=heads, features=("position",)), some.logs, VALUE)
    with pytest.raises(ConfigError, match="no list says where a user left"):
        fit_linear(CONFIG, some.logs.select(some.logs.consumed == 6), VALUE)


def lineage(version: str, part: Part | None, arch: str = "step", salt: str = "0") -> Lineage:
    fold = None if part is None else Split(salt=salt).fold(part)
    return Lineage(version=version, fold=fold, arch=arch)


def test_a_judge_must_be_independent() -> None:
    step, judge = lineage("a", Part.STEP), lineage("b", Part.JUDGE, "linear")
    assert "users of its own" in check_independent(judge, [step])
    for bad, reason in (
        (lineage("a", Part.STEP), "is the selector itself"),
        (lineage("b", Part.STEP, "linear"), "learned from the same users"),
        (lineage("b", Part.JUDGE, "linear", salt="1"), "different splits"),
        (lineage("b", Part.JUDGE), "same architecture"),
        (lineage("b", None, "linear"), "not known"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_independent(bad, [step])


def test_what_is_not_recorded_is_said() -> None:
    step, judge = lineage("a", None), lineage("b", Part.JUDGE, "linear")
    assert "independence is not shown" in check_independent(judge, [step], unrecorded=True)
    with pytest.raises(ConfigError, match="is the selector itself"):
        check_independent(step, [step], unrecorded=True)
    with pytest.raises(ConfigError, match="same users"):
        check_independent(judge, [step, lineage("c", Part.JUDGE)], unrecorded=True)


def test_ranks_share_ties() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]
    x, y = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([2.0, 1.0, 4.0, 3.0, 5.0])
    assert rank_correlation(x, y, np.arange(5))[0] == pytest.approx(0.8)
    assert rank_correlation(x, np.ones(5), np.arange(5)) == (None, None, None)


def test_calibration_error_is_that_of_the_bins() -> None:
    said = np.repeat([0.1, 0.9], 500)
    labels = np.concatenate([np.repeat([0.0, 1.0], [400, 100]), np.repeat([0.0, 1.0], [50, 450])])
    assert expected_calibration_error(said, labels, bins=2) == pytest.approx((0.1 + 0.0) / 2)


def test_regression_heads_have_losses_of_their_own(some: Explored) -> None:
    heads = (*HEADS, Head("seconds", HeadKind.REGRESSION))
    value = ValueFunction(
        ValueDocument(id="s", terms=(Term(weight=1.0, factors=(Factor(head="seconds"),)),)), heads
    )
    N, L = some.logs.items.shape
    random = np.random.default_rng(1)
    mean = random.uniform(5, 30, (N, L))
    seconds = random.exponential(mean)
    labels = np.stack([some.logs.labels[..., 0], seconds], axis=2).astype(np.float32)
    outputs = np.stack([some.logs.outputs[..., 0], mean], axis=2).astype(np.float32)
    logs = replace(some.logs, heads=heads, labels=labels, outputs=outputs)
    said = np.stack([np.full((N, L), 0.5), mean], axis=2)
    found = judge_quality(Predicted(said, np.zeros((N, L)), mean, mean.sum(axis=1)), logs, value)
    one = {each.name: each for each in found.heads}["seconds"]
    assert one.auc is None
    assert one.log_loss < one.base_log_loss
    assert "exit" not in [each.name for each in found.heads]
