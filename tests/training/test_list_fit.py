"""Training of list nets: serving's arithmetic, blind behind exits, order effects, conformal bounds."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64
from relaygr.listwise.folds import Part, Split
from relaygr.listwise.list_net import Arch, ListNet, ListNetConfig
from relaygr.listwise.pool import Head, HeadKind
from relaygr.listwise.request import Mode
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import HeadSpec
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.training.slate.gain_methods import ask
from relaygr.training.slate.list_fit import (
    ListTraining,
    calibrated,
    predicted,
    realised_utility,
    train_lists,
)
from relaygr.training.slate.list_nets import ListMember
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.world import HEADS, VALUE, World, WorldConfig

TINY = WorldConfig(items=300, topics=20, candidates=30)
FEATURES = ("similarity:max", "similarity:mean", "count:topic", "recency:topic", "position")
CONFIG = ListNetConfig(
    heads=(HeadSpec(name="watch"),),
    features=FEATURES,
    relations=("topic",),
    width=16,
    attention_heads=2,
)
QUICK = ListTraining(epochs=2)
SHAPES = [(arch, causal) for arch in Arch for causal in (True, False)]


@pytest.fixture(scope="module")
def logs() -> LoggedLists:
    return explored_logs(World(TINY).requests(300, 1), 1).logs


def shaped(**changes: object) -> ListNetConfig:
    return msgspec.structs.replace(CONFIG, **changes)


@pytest.mark.parametrize(("arch", "causal"), SHAPES)
def test_torch_and_numpy_agree(arch: Arch, causal: bool) -> None:
    heads = (HeadSpec(name="like"), HeadSpec(name="watch_s", kind=HeadKind.REGRESSION))
    config = shaped(heads=heads, arch=arch, causal=causal, members=2)
    random = np.random.default_rng(0)
    net = ListNet(
        config,
        {
            name: values + 0.4 * random.standard_normal(values.shape).astype(np.float32)
            for name, values in ListNet.zero(config).tensors.items()
        },
    )
    context = random.standard_normal((4, 6, len(FEATURES)))
    base = random.standard_normal((4, 6, 2))
    base[..., 1] = np.exp(base[..., 1])
    relations = random.random((4, config.relation_count, 6, 6))
    values, leave = net(context, base, relations)
    # Two more positions that are not there change nothing.
    wide = [np.pad(context, ((0, 0), (0, 2), (0, 0)), constant_values=3.0)]
    wide += [np.pad(base, ((0, 0), (0, 2), (0, 0)), constant_values=1.0)]
    wide += [np.pad(relations, ((0, 0), (0, 0), (0, 2), (0, 2)), constant_values=0.5)]
    there = torch.arange(8) < torch.full((4, 1), 6)
    for member in range(2):
        torch_net = ListMember(net, member).double()
        with torch.no_grad():
            conditional, exits = torch_net(*map(torch.from_numpy, wide), there)
        assert torch.sigmoid(conditional[:, :6, 0]).numpy() == pytest.approx(values[member, 0], abs=1e-9)
        assert torch.exp(conditional[:, :6, 1]).numpy() == pytest.approx(values[member, 1], rel=1e-9)
        assert exits[:, :6].numpy() == pytest.approx(leave[member], abs=1e-9)


@pytest.mark.parametrize("arch", list(Arch))
def test_nothing_behind_an_exit_is_read(arch: Arch, logs: LoggedLists) -> None:
    random = np.random.default_rng(3)
    behind = ~logs.observed
    labels = np.where(behind[..., None], random.integers(0, 2, logs.labels.shape), logs.labels)
    outputs = np.where(behind[..., None], random.standard_normal(logs.outputs.shape), logs.outputs)
    other = replace(logs, labels=labels.astype(np.float32))
    first, _ = train_lists(shaped(arch=arch), logs, QUICK)
    assert train_lists(shaped(arch=arch), other, QUICK)[0].version == first.version
    # A causal net looks at no output there either.
    other = replace(other, outputs=outputs.astype(np.float32))
    assert train_lists(shaped(arch=arch), other, QUICK)[0].version == first.version
    assert train_lists(shaped(arch=arch, seed=1), logs, QUICK)[0].version != first.version


def test_predictions_of_logged_lists_are_those_of_requests(logs: LoggedLists) -> None:
    net, _ = train_lists(shaped(members=2), logs, QUICK)
    world = World(TINY)
    requests = world.requests(5, 9)
    sampled = explored_logs(requests, 9)
    told = predicted(net, VALUE, sampled.logs)
    plain, evaluator = Slates(VALUE, mode=Mode.OFF), TrainedEvaluator(net, VALUE)
    for n in range(5):
        scene = plain.scene(ask(requests, n), requests.pool(n))
        picks = np.argsort(scene.columns)[sampled.lists[n]].astype(np.int32)
        assert evaluator.evaluate(scene, picks[None])[:, 0] == pytest.approx(told[:, n], rel=1e-5)


def spread_of_orders(config: WorldConfig, arch: Arch, lists: int, epochs: int) -> float:
    """Standard deviation of U over shuffles of a list, as a share of U; mean over lists."""
    world = World(config)
    shape = shaped(arch=arch)
    net, _ = train_lists(shape, explored_logs(world.requests(lists, 1), 1).logs, ListTraining(epochs=epochs))
    requests, plain = world.requests(30, 2), Slates(VALUE, mode=Mode.OFF)
    evaluator, random, shares = TrainedEvaluator(net, VALUE), np.random.default_rng(0), []
    for n in range(len(requests)):
        scene = plain.scene(ask(requests, n), requests.pool(n))
        assert scene.fallback is not None
        orders = np.stack([random.permutation(scene.fallback) for _ in range(20)])
        worth: Float64 = evaluator.evaluate(scene, orders)[0]
        shares.append(worth.std() / worth.mean())
    return float(np.mean(shares))


NO_EFFECTS = msgspec.structs.replace(TINY, similarity=0.0, repetition=0.0, exit=False)


@pytest.mark.parametrize("arch", list(Arch))
def test_shuffling_moves_the_value_where_order_matters_alone(arch: Arch) -> None:
    assert NO_EFFECTS.order_blind
    assert not TINY.order_blind
    moved = spread_of_orders(TINY, arch, 3000, 12)
    still = spread_of_orders(NO_EFFECTS, arch, 3000, 12)
    assert moved > 0.03
    assert still < 0.02
    assert moved > 3 * still


def test_an_ensemble_learns_from_resampled_users(logs: LoggedLists) -> None:
    net, loss = train_lists(shaped(members=3), logs, QUICK)
    assert np.isfinite(loss)
    told = predicted(net, VALUE, logs)
    assert told.std(0).min() > 0
    # One member is that of the same seed alone, resampled or not.
    again, _ = train_lists(shaped(members=3), logs, QUICK)
    assert again.version == net.version


def test_conformal_bounds_cover(logs: LoggedLists) -> None:
    world = World(TINY)
    net, _ = train_lists(CONFIG, logs, QUICK)
    held = explored_logs(world.requests(2000, 5), 5).logs
    names = np.where(np.arange(2000) % 2 == 0, "beam4", "mmr")
    held = replace(held, generator=names.astype(np.str_))
    net = calibrated(net, VALUE, held.select(np.arange(1000)), alpha=0.2)
    assert net.config.calibration is not None
    conformal = net.config.calibration.conformal()
    assert {generator for _, generator in conformal.quantiles} == {"beam4", "mmr"}
    fresh = held.select(np.arange(1000, 2000))
    bound = predicted(net, VALUE, fresh).mean(0) - conformal(TINY.length, fresh.generators)
    assert (realised_utility(VALUE, fresh) >= bound).mean() == pytest.approx(0.8, abs=0.05)


def test_what_does_not_fit_is_told(logs: LoggedLists) -> None:
    fold = Split().fold(Part.EVALUATOR)
    with pytest.raises(ConfigError, match="fold"):
        train_lists(shaped(fold=fold), logs, QUICK)
    mine = logs.select(fold.rows(logs.users))
    assert train_lists(shaped(fold=fold), mine, QUICK)[0].lineage.fold == fold
    with pytest.raises(ConfigError, match="heads"):
        train_lists(CONFIG, replace(logs, heads=(Head("other"),)), QUICK)
    with pytest.raises(ConfigError, match="vectors"):
        train_lists(shaped(features=("position",)), replace(logs, vectors=None), QUICK)
    with pytest.raises(ConfigError, match="topic"):
        train_lists(shaped(features=("position",)), replace(logs, attributes={}), QUICK)
    assert logs.heads == HEADS
