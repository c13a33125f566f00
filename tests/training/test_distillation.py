"""Distillation of `one_shot`: serving's arithmetic, a proper likelihood, and what its lists gain."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.lists import ListModel
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import HeadSpec
from relaygr.training.slate.distil import Distillation, Lessons, distil, make_pools, taught, teachers
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.gain_methods import ask, proposed
from relaygr.training.slate.one_shot_net import OneShotNet, list_likelihood
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.truth import watched
from relaygr.training.slate.world import VALUE, Requests, World, WorldConfig

CONFIG = OneShotConfig(heads=(HeadSpec(name="watch"),), attributes=("topic", "author"), blocks=1, top=12)


def scenes_of(requests: Requests) -> list[Scene]:
    plain = Slates(VALUE, mode=Mode.OFF)
    return [plain.scene(ask(requests, n), requests.pool(n)) for n in range(len(requests))]


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return scenes_of(World(WorldConfig(items=200, topics=10, candidates=20, length=6)).requests(20, 1))


def random_scorer(config: OneShotConfig, seed: int = 0) -> OneShot:
    random = np.random.default_rng(seed)
    zero = OneShot.zero(config)
    noise = {name: random.standard_normal(each.shape) for name, each in zero.tensors.items()}
    return OneShot(
        config, {name: (zero.tensors[name] + 0.3 * noise[name]).astype(np.float32) for name in noise}
    )


def test_torch_and_numpy_agree(scenes: list[Scene]) -> None:
    model = random_scorer(CONFIG)
    pools = make_pools(scenes, CONFIG)
    net = OneShotNet(model)
    inputs = (torch.from_numpy(each) for each in (pools.inputs, pools.standard, pools.cosine, pools.there))
    with torch.no_grad():
        scores, repulsion = net(*inputs)
    for at, region in enumerate(pools.regions):
        slow, losses = model.scores(region.scene)
        C = len(slow)
        assert scores[at, :C].numpy() == pytest.approx(slow, abs=1e-5)
        assert repulsion[at, :, :C].numpy() == pytest.approx(losses, abs=1e-5)
    assert net.model().version == model.version


def test_likelihoods_of_all_lists_sum_to_one(scenes: list[Scene]) -> None:
    config = OneShotConfig(heads=CONFIG.heads, attributes=("topic",), top=6, window=2)
    narrow = World(WorldConfig(items=60, topics=3, tastes=2, candidates=6, length=3)).requests(4, 1)
    pools = make_pools(scenes_of(narrow), config)
    net = OneShotNet(random_scorer(config)).double()
    parts = (torch.from_numpy(each) for each in (pools.inputs, pools.standard, pools.cosine))
    scores, repulsion = net(*(each.double() for each in parts), torch.from_numpy(pools.there))
    lists = torch.tensor(list(itertools.permutations(range(6), 3))).expand(4, -1, -1)
    cosine, same = torch.from_numpy(pools.cosine).double(), torch.from_numpy(pools.same)
    logs = list_likelihood(scores, repulsion, cosine, same, lists, config.window)
    assert logs.exp().sum(1).detach().numpy() == pytest.approx(np.ones(4))
    # The list that serving makes takes the likeliest pick at every position.
    for at, region in enumerate(pools.regions):
        model = net.float().model()
        made = model.propose(region.scene, free())[0].picks.tolist()
        prefixes = [one for one in itertools.permutations(range(6), 3) if list(one[:2]) == made[:2]]
        places = [lists[0].tolist().index(list(one)) for one in prefixes]
        assert lists[0, places[int(logs[at, places].argmax())]].tolist() == made
        net.double()


def free() -> Budget:
    return Budget(ManualClock())


def test_targets_are_shares() -> None:
    reward = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, -np.inf]])
    shares = Lessons(np.zeros((2, 3, 1), dtype=np.int64), reward).targets(0.5)
    assert shares.sum(1) == pytest.approx([1.0, 1.0])
    assert shares[1].tolist() == [0.5, 0.5, 0.0]
    spread = np.sqrt(2 / 3)
    assert np.log(shares[0, 2] / shares[0, 1]) == pytest.approx(1 / (0.5 * spread))


def test_lessons_are_inside_the_region_and_have_the_evaluators_rewards(scenes: list[Scene]) -> None:
    world = World(WorldConfig(items=200, topics=10, candidates=20, length=6))
    logs = explored_logs(world.requests(200, 2), 2).logs
    model = ListModel(train_step(world_config(), logs, StepTraining(epochs=1)).model, VALUE)
    pools = make_pools(scenes, CONFIG)
    lessons = taught(pools, teachers(model, CONFIG.top), Rescore([model]))
    for region, lists, rewards in zip(pools.regions, lessons.lists, lessons.reward, strict=True):
        known = np.isfinite(rewards)
        assert len({tuple(one) for one in lists[known].tolist()}) == known.sum() > 1
        assert all(region.holds(one) for one in lists)
        values = model.utilities(region.scene, lists[known].astype(np.int32))
        assert rewards[known] == pytest.approx(values)
    first = distil(CONFIG, pools, lessons, Distillation(epochs=1))
    assert distil(CONFIG, pools, lessons, Distillation(epochs=1)).version == first.version
    assert distil(CONFIG, pools, lessons, Distillation(epochs=1, seed=1)).version != first.version


def test_what_does_not_fit_is_told(scenes: list[Scene]) -> None:
    with pytest.raises(ConfigError, match="requests"):
        make_pools([], CONFIG)
    requests = World(WorldConfig(items=200, topics=10, candidates=20, length=6)).requests(1, 1)
    other = Slates(VALUE, mode=Mode.OFF).scene(SlateAsk(request_id="x", length=3), requests.pool(0))
    with pytest.raises(ConfigError, match="lengths"):
        make_pools([*scenes, other], CONFIG)


def share_of_beam(lists: int, requests: int, judged: int, training: StepTraining) -> float:
    """What the distilled lists gain in truth, as a share of what beam 4 does."""
    world = World(WorldConfig())
    logs = explored_logs(world.requests(lists, 1), 1).logs
    model = ListModel(train_step(world_config(), logs, training).model, VALUE)
    config = OneShotConfig(heads=CONFIG.heads, attributes=("topic",))
    pools = make_pools(scenes_of(world.requests(requests, 2)), config)
    shot = distil(config, pools, taught(pools, teachers(model, 30), Rescore([model])))
    fresh = world.requests(judged, 3)
    found = scenes_of(fresh)
    pointwise = float(watched(fresh, fresh.pointwise()).utility.mean())

    def gain(generator: Generator, scenes: Sequence[Scene] = found) -> float:
        return float(watched(fresh, proposed(generator, scenes)).utility.mean()) / pointwise - 1

    beam = gain(Beam(model))
    assert beam > 0.05
    return gain(shot) / beam


def test_distilled_lists_keep_the_gain() -> None:
    assert share_of_beam(800, 250, 150, StepTraining()) >= 0.9


@pytest.mark.slow
def test_distilled_lists_keep_the_gain_of_a_good_model() -> None:
    assert share_of_beam(8000, 1500, 600, StepTraining()) >= 0.9
