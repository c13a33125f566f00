"""Training of step models: equal to serving's arithmetic, blind behind exits, and right about effects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from relaygr.core.errors import ConfigError
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head, HeadKind, Pool, sigmoid
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import Group, HeadSpec, StepConfig, StepModel, default_groups
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction
from relaygr.training.slate import descent
from relaygr.training.slate.fit import Solver, StepTraining, position_bound, train_ensemble, train_step
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.rows import training_rows
from relaygr.training.slate.sampling import explored_logs, random_exposures
from relaygr.training.slate.shapes import default_config, reference_config, world_config
from relaygr.training.slate.step_net import StepNet, hazard
from relaygr.training.slate.world import World, WorldConfig

TINY = WorldConfig(items=300, topics=20, candidates=30)
SMALL = StepTraining(epochs=3, batch_rows=256)


@pytest.fixture(scope="module")
def logs():  # type: ignore[no-untyped-def]
    world = World(TINY)
    return explored_logs(world.requests(400, 1), 1).logs


def same(left: StepModel, right: StepModel) -> bool:
    return left.version == right.version


def test_torch_and_numpy_agree() -> None:
    heads = (Head("like"), Head("watch_s", HeadKind.REGRESSION))
    value = ValueFunction(
        ValueDocument(id="v", terms=(Term(weight=1.0, factors=(Factor(head="like"),)),)), heads
    )
    config = default_config(heads, ("topic",), watch_head="watch_s")
    config = msgspec.structs.replace(config, positions=3)
    random = np.random.default_rng(0)
    tensors = {
        name: values + 0.5 * random.standard_normal(values.shape).astype(np.float32)
        for name, values in StepModel.zero(config).tensors.items()
    }
    tensors["heads.scale"][1] = 1.0
    model = ListModel(StepModel(config, tensors), value)
    outputs = random.standard_normal((9, 2)).astype(np.float32)
    outputs[:, 1] = np.exp(outputs[:, 1])
    vectors = random.standard_normal((9, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pool = Pool(
        ids=np.arange(9),
        heads=heads,
        outputs=outputs,
        attributes={"topic": random.integers(0, 3, 9)},
        vectors=vectors,
    )
    scene = Slates(value, mode=Mode.OFF).scene(SlateAsk(request_id="r", length=6), pool)
    lists = np.stack([random.permutation(9)[:6] for _ in range(5)]).astype(np.int32)
    wanted = model(scene, lists)
    net = StepNet(model.step)
    assert same(net.model(), model.step)
    context = torch.from_numpy(np.ascontiguousarray(wanted.context.transpose(0, 2, 1))).reshape(30, -1)
    base = torch.from_numpy(wanted.base.transpose(1, 2, 0).reshape(30, 2).copy())
    with torch.no_grad():
        conditional, leave = net(context, base, torch.arange(6).repeat(5))
    found = conditional.numpy().reshape(5, 6, 2)
    assert found[..., 0] == pytest.approx(wanted.conditional[0], abs=1e-6)
    assert np.exp(found[..., 1]) == pytest.approx(wanted.conditional[1], rel=1e-6)
    assert hazard(leave).numpy().reshape(5, 6) == pytest.approx(wanted.hazard, abs=1e-6)


def test_what_training_writes_serving_reads(logs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trained = train_step(world_config(), logs, SMALL)
    trained.model.save(tmp_path)
    assert same(StepModel.load(tmp_path), trained.model)
    assert trained.rows == logs.consumed.sum()
    again = train_step(world_config(), logs, SMALL)
    assert same(again.model, trained.model)
    other = train_step(world_config(), logs, msgspec.structs.replace(SMALL, seed=1))
    assert not same(other.model, trained.model)


def test_labels_behind_the_exit_change_nothing(logs) -> None:  # type: ignore[no-untyped-def]
    labels, outputs = logs.labels.copy(), logs.outputs.copy()
    random = np.random.default_rng(0)
    labels[~logs.observed] = random.integers(0, 2, labels[~logs.observed].shape)
    changed = train_step(world_config(), replace(logs, labels=labels), SMALL)
    plain = train_step(world_config(), logs, SMALL)
    assert same(plain.model, changed.model)
    outputs[~logs.observed] = 9.0
    topics = np.where(logs.observed, logs.attributes["topic"], 3)
    elsewhere = replace(logs, outputs=outputs, attributes={**logs.attributes, "topic": topics})
    assert same(plain.model, train_step(world_config(), elsewhere, SMALL).model)
    labels[logs.observed] = 1 - labels[logs.observed]
    assert not same(plain.model, train_step(world_config(), replace(logs, labels=labels), SMALL).model)


def test_logs_without_exploration_are_refused(logs) -> None:  # type: ignore[no-untyped-def]
    bare = replace(logs, log_propensity=np.full(logs.items.shape, np.nan))
    with pytest.raises(ConfigError, match="cannot be told apart"):
        train_step(world_config(), bare, SMALL)
    train_step(world_config(), bare, msgspec.structs.replace(SMALL, epochs=1, allow_unexplored=True))


def test_training_learns_what_context_does() -> None:
    world = World(msgspec.structs.replace(TINY, similarity=2.0, repetition=0.5))
    logs = explored_logs(world.requests(1500, 1), 1).logs
    model = train_step(reference_config(), logs).model
    net = model.nets[0]
    # Rows: largest and mean similarity, picks of the topic, position.
    alone, alike, again = (
        net(np.array(column)[:, None])[:, 0]
        for column in ([0, 0, 0, 0.1], [0.9, 0.5, 0, 0.1], [0.9, 0.5, 3, 0.1])
    )
    assert alike[0] - alone[0] < -0.6
    assert again[0] - alike[0] < -0.3
    assert again[1] - alone[1] > 0.2  # more of them leave


@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_a_chunk_of_rows_more_changes_nothing(logs, monkeypatch: pytest.MonkeyPatch, ridge: float) -> None:  # type: ignore[no-untyped-def]
    """Chunks bound memory alone: losses and gradients are sums over rows."""
    training = StepTraining(epochs=5, ridge=ridge)
    whole = train_step(world_config(), logs, training)
    monkeypatch.setattr(descent, "_CHUNK", 100)
    parts = train_step(world_config(), logs, training)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-9)
    for name, values in whole.model.tensors.items():
        assert parts.model.tensors[name] == pytest.approx(values, abs=1e-5)


def test_both_solvers_find_the_same_likelihood(logs) -> None:  # type: ignore[no-untyped-def]
    exact = train_step(world_config(), logs, StepTraining(ridge=3.0))
    passes = StepTraining(solver=Solver.ADAM, ridge=3.0, epochs=150, learning_rate=0.01, batch_rows=2048)
    assert train_step(world_config(), logs, passes).loss == pytest.approx(exact.loss, abs=2e-3)
    plain = train_step(world_config(), logs, StepTraining(ridge=0.0))
    assert plain.loss < exact.loss


def test_heads_of_both_kinds_are_fitted() -> None:
    """Watching falls by the same share with every item of the topic before; liking does not change."""
    random, n, length = np.random.default_rng(0), 500, 6
    topics = random.integers(0, 3, (n, length))
    same = topics[:, :, None] == topics[:, None, :]
    before = (same & np.tri(length, k=-1, dtype=bool)).sum(2)
    logit, seconds = random.standard_normal((n, length)), np.exp(random.standard_normal((n, length)))
    likes = random.random((n, length)) < sigmoid(logit)
    watch = random.exponential(seconds * np.exp(-0.4 * before))
    logs = LoggedLists(
        heads=(Head("like"), Head("watch_s", HeadKind.REGRESSION)),
        users=np.arange(n),
        items=np.arange(n * length).reshape(n, length),
        outputs=np.stack([logit, seconds], axis=2).astype(np.float32),
        labels=np.stack([likes, watch], axis=2).astype(np.float32),
        attributes={"topic": topics},
        vectors=None,
        shown=np.full(n, length),
        consumed=np.full(n, length),
        more=np.ones(n, dtype=bool),
        asked=np.full(n, length),
        surface=np.zeros(n, dtype=np.int64),
        page=np.zeros(n, dtype=np.int64),
        session=np.zeros(n, dtype=np.int64),
        log_propensity=np.full((n, length), -1.0),
    )
    groups = (Group(name="topic", features=("count:topic",)),)
    config = StepConfig(heads=tuple(HeadSpec(name=h.name, kind=h.kind) for h in logs.heads), groups=groups)
    model = train_step(config, logs).model
    terms = model.nets[0](np.array([[0.0, 1.0, 2.0]]))
    changes = terms[1] + model.bias[1]
    assert changes == pytest.approx([0.0, -0.4, -0.8], abs=0.1)
    assert terms[0] + model.bias[0] == pytest.approx(np.zeros(3), abs=0.3)
    assert model.scale[0] == pytest.approx(1.0, abs=0.15)


def test_members_of_an_ensemble_differ(logs) -> None:  # type: ignore[no-untyped-def]
    made = train_ensemble(world_config(), logs, 2, SMALL)
    assert len({one.model.version for one in made}) == 2


def test_position_offsets_are_recovered_and_dropped() -> None:
    world = World(msgspec.structs.replace(TINY, position_bias=1.0, similarity=0, repetition=0, exit=False))
    logs = explored_logs(world.requests(6000, 1), 1).logs
    config = world_config()
    trained = train_step(config, logs, StepTraining(epochs=40, position_control=True))
    assert trained.position is not None
    offsets, places = trained.position[0, :, 0], np.arange(10) / 9
    assert offsets[0] == 0
    slope = float(places @ offsets) / float(places @ places)
    assert slope == pytest.approx(-1.0, rel=0.1)
    # Nothing of it is left in the model that serves: the logs could not tell position from its offsets.
    assert set(trained.unidentified) == {"position", "session"}
    place = next(net for net in trained.model.nets if net.name == "place")
    assert not place.out[0].any()


def test_features_that_positions_determine(logs) -> None:  # type: ignore[no-untyped-def]
    features = StepModel.zero(world_config()).features
    assert position_bound(features, training_rows(features, logs)) == (("position", "session"), ("page",))
    spread = replace(logs, session=np.random.default_rng(0).integers(0, 50, len(logs)))
    assert position_bound(features, training_rows(features, spread)) == (("position",), ("page",))


def test_random_exposures_reduce_the_bias_of_items() -> None:
    """Logs hold what the ranker thinks most of; single items shown at random tell of the others."""
    errors = np.array([item_bias(seed) for seed in range(3)]).mean(0)
    assert errors[1] < 0.5 * errors[0]


def item_bias(seed: int) -> list[float]:
    """Without exposures and with: mean |predicted - true| watching of items in five groups of outputs."""
    world = World(msgspec.structs.replace(TINY, bias=1.0, seed=seed))
    logs = explored_logs(world.requests(300, 1), 1).logs
    extra = random_exposures(world.requests(600, 2), 2, each=4)
    test = world.requests(500, 3)
    truth = sigmoid(test.theta.astype(np.float64))
    cells = np.digitize(test.logits, np.quantile(test.logits, [0.2, 0.4, 0.6, 0.8])).ravel()
    errors = []
    for exposures in (None, extra):
        model = train_step(world_config(), logs, exposures=exposures).model
        empty = np.zeros((len(model.features), 1))
        term = sum(float(net(empty)[0, 0]) for net in model.nets)
        predicted = sigmoid(model.scale[0] * test.logits + model.bias[0] + term)
        errors.append(
            np.mean([abs(float((predicted - truth).ravel()[cells == cell].mean())) for cell in range(5)])
        )
    return errors


def test_default_groups_of_no_attribute() -> None:
    config = default_config((Head("watch"),), ())
    assert config.groups == default_groups(())
