"""The world of known truth: closed form, switches, oracle, and what its users leave in logs."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.training.slate.sampling import (
    explored_logs,
    list_propensities,
    plackett_luce,
    random_exposures,
    realised,
    watch_lists,
)
from relaygr.training.slate.truth import Walkers, oracle_beam, regret, watched
from relaygr.training.slate.world import Requests, World, WorldConfig

# Every effect on, and so few topics and authors that all of them are met.
FULL = WorldConfig(
    items=60,
    topics=5,
    authors=6,
    candidates=12,
    length=5,
    fatigue=0.4,
    author=0.7,
    author_window=2,
    drift=0.3,
)
SMALL = WorldConfig(items=300, topics=20, candidates=30)
OFF = {"similarity": 0.0, "repetition": 0.0, "fatigue": 0.0, "author": 0.0, "exit": False}


def some_lists(requests: Requests, lists: int, seed: int = 0) -> np.ndarray:
    keys = np.random.default_rng(seed).random((len(requests), lists, requests.items.shape[1]))
    return np.argsort(keys, axis=2)[..., : requests.world.config.length].astype(np.int32)


def naive_utility(requests: Requests, n: int, picks: list[int]) -> float:
    """The formula of the module, one pick after the other."""
    config, world = requests.world.config, requests.world
    total, survival = 0.0, 1.0
    for t, pick in enumerate(picks):
        item, before = requests.items[n, pick], requests.items[n, picks[:t]]
        logit = float(requests.theta[n, pick])
        cosines = [float(world.vectors[item] @ world.vectors[other]) for other in before[-config.window :]]
        logit -= config.similarity * max([0.0, *cosines])
        same = sum(int(world.topics[item] == world.topics[other]) for other in before)
        logit -= config.repetition * same + config.fatigue * t / config.length
        logit -= config.author * (world.authors[item] in world.authors[before[-config.author_window :]])
        p = 1 / (1 + math.exp(-logit))
        total += survival * p
        if config.exit:
            leave = config.exit_base + config.exit_value * (1 - p) + config.exit_repeat * (same > 0)
            survival *= 1 - 1 / (1 + math.exp(-leave))
    return total


@pytest.mark.parametrize("config", [FULL, WorldConfig(items=90, topics=6, candidates=10, length=4)])
def test_closed_form(config: WorldConfig) -> None:
    requests = World(config).requests(4, 0)
    lists = some_lists(requests, 3)
    found = watched(requests, lists).utility
    for n, g in itertools.product(range(4), range(3)):
        assert found[n, g] == pytest.approx(naive_utility(requests, n, lists[n, g].tolist()), abs=1e-6)


def test_position_by_position_is_the_closed_form() -> None:
    requests = World(FULL).requests(6, 1)
    lists = some_lists(requests, 1)[:, 0]
    truth, walkers = watched(requests, lists), Walkers(requests)
    state, rows = walkers.start(), np.arange(6)
    for t in range(FULL.length):
        now = walkers.truth(state)
        assert now.watch[rows, 0, lists[:, t]] == pytest.approx(truth.watch[:, t], abs=1e-6)
        assert now.leave[rows, 0, lists[:, t]] == pytest.approx(truth.leave[:, t], abs=1e-6)
        state = walkers.step(
            state, np.zeros((6, 1), dtype=np.int64), lists[:, t : t + 1], *np.zeros((2, 6, 1))
        )


@pytest.mark.parametrize("effect", list(OFF))
def test_each_effect_has_a_switch(effect: str) -> None:
    alone = msgspec.structs.replace(FULL, **(OFF | {effect: getattr(FULL, effect)}))
    blind = msgspec.structs.replace(FULL, **OFF)
    assert blind.order_blind
    assert not alone.order_blind
    requests, plain = World(alone).requests(8, 0), World(blind).requests(8, 0)
    lists = some_lists(requests, 1)[:, 0]
    lost = watched(plain, lists).utility - watched(requests, lists).utility
    assert lost.min() > -1e-6
    assert lost.max() > 0.05
    mixed = np.random.default_rng(1).permuted(lists, axis=1)
    assert watched(plain, mixed).utility == pytest.approx(watched(plain, lists).utility, abs=1e-6)
    assert np.abs(watched(requests, mixed).utility - watched(requests, lists).utility).max() > 1e-3


def test_what_the_ranker_knows() -> None:
    clear = World(WorldConfig(noise=0.0)).requests(20, 0)
    assert np.array_equal(clear.theta, clear.logits)
    drifted = World(WorldConfig(noise=0.0, drift=0.5)).requests(20, 0)
    assert np.std(drifted.theta - drifted.logits) == pytest.approx(0.5, rel=0.2)
    noisy = World(WorldConfig()).requests(50, 0)
    assert np.std(noisy.theta - noisy.logits) == pytest.approx(0.6, rel=0.05)


def test_requests() -> None:
    world = World()
    requests = world.requests(30, 3, users=10)
    again = World().requests(30, 3, users=10)
    assert np.array_equal(requests.items, again.items)
    assert np.array_equal(requests.logits, again.logits)
    assert not np.array_equal(requests.items, world.requests(30, 4, users=10).items)
    assert len(np.unique(requests.users)) == 10
    for items in requests.items:
        assert len(set(items.tolist())) == 80
        counts = np.sort(np.bincount(world.topics[items], minlength=40))
        assert counts[-4:].sum() >= 40
    pool = requests.pool(2)
    assert np.array_equal(pool.outputs[:, 0], requests.logits[2])
    assert np.array_equal(pool.attributes["topic"], world.topics[requests.items[2]])


def test_sizes_that_make_no_sense() -> None:
    for change, part in (({"length": 81}, "length"), ({"topics": 3}, "tastes"), ({"noise": -1.0}, "noise")):
        with pytest.raises(ConfigError, match=part):
            WorldConfig(**change)  # type: ignore[arg-type]


def test_a_wide_oracle_finds_the_best_list() -> None:
    config = msgspec.structs.replace(FULL, candidates=5, length=3)
    requests = World(config).requests(5, 0)
    every = np.array(list(itertools.permutations(range(5), 3)), dtype=np.int32)
    best = watched(requests, np.broadcast_to(every, (5, *every.shape))).utility.max(axis=1)
    found = watched(requests, oracle_beam(requests, 60)).utility
    assert found == pytest.approx(best, abs=1e-6)
    assert regret(requests, oracle_beam(requests, 60), 60) == pytest.approx(np.zeros(5), abs=1e-9)
    assert (regret(requests, requests.pointwise(), 60) > -1e-9).all()


def test_a_wider_oracle_is_never_worse() -> None:
    requests = World(FULL).requests(40, 2)
    worth = [watched(requests, oracle_beam(requests, width)).utility for width in (1, 2, 3, 5, 8)]
    for narrow, wide in itertools.pairwise(worth):
        assert (wide >= narrow - 1e-6).all()
    assert worth[0].mean() > watched(requests, requests.pointwise()).utility.mean()


def test_propensities_by_enumeration() -> None:
    scores = np.array([[1.0, 0.2, -0.5, 0.9]])
    every = list(itertools.permutations(range(4), 2))
    total = 0.0
    for first, second in every:
        logs = list_propensities(scores, np.array([[first, second]]))[0]
        rest = [at for at in range(4) if at != first]
        assert logs[0] == pytest.approx(scores[0, first] - np.log(np.exp(scores[0]).sum()))
        assert logs[1] == pytest.approx(scores[0, second] - np.log(np.exp(scores[0, rest]).sum()))
        total += np.exp(logs.sum())
    assert total == pytest.approx(1.0)


def test_drawn_lists_have_their_propensities() -> None:
    config = msgspec.structs.replace(FULL, candidates=4, length=2)
    one = World(config).requests(1, 0)
    many = one.select(np.zeros(20_000, dtype=np.int64))
    lists, logs = plackett_luce(many, 5, temperature=1.0)
    for pair in itertools.permutations(range(4), 2):
        mine = (lists == pair).all(axis=1)
        share, expected = mine.mean(), float(np.exp(logs[mine][0].sum()))
        assert share == pytest.approx(expected, abs=5 * math.sqrt(expected / 20_000))


def test_logs_are_cut_at_the_exit() -> None:
    requests = World(SMALL).requests(3000, 0)
    sampled = explored_logs(requests, 0)
    logs, L = sampled.logs, 10
    assert logs.explored.all()
    assert np.array_equal(np.isfinite(logs.labels[..., 0]), np.arange(L) < logs.consumed[:, None])
    truth = watched(requests, sampled.lists)
    first = logs.labels[:, 0, 0]
    assert first.mean() == pytest.approx(truth.watch[:, 0].mean(), abs=0.04)
    assert (logs.consumed == 1).mean() == pytest.approx(truth.leave[:, 0].mean(), abs=0.04)
    leaves = logs.leaves()
    ended = logs.consumed < L
    assert np.nansum(leaves, axis=1) == pytest.approx(ended.astype(float))
    assert np.isnan(leaves[~ended, -1]).all()  # nobody asked for the next page
    got = realised(truth, np.random.default_rng(0))
    assert got.mean() == pytest.approx(truth.utility.mean(), abs=0.15)


def test_position_bias_is_in_logs_alone() -> None:
    fair, biased = (
        World(msgspec.structs.replace(SMALL, position_bias=bias, exit=False)) for bias in (0.0, 2.0)
    )
    requests, other = fair.requests(2000, 0), biased.requests(2000, 0)
    lists = requests.pointwise()
    assert watched(requests, lists).utility == pytest.approx(watched(other, lists).utility)
    means = [watch_lists(each, lists, 1).logs.labels[..., 0].mean(0) for each in (requests, other)]
    assert means[0][0] == pytest.approx(means[1][0])
    assert means[0][9] > means[1][9] + 0.2


def test_random_exposures_are_of_all_candidates() -> None:
    requests = World(SMALL).requests(2000, 0)
    found = random_exposures(requests, 0, each=3)
    assert found.outputs.shape == found.labels.shape == (6000, 1)
    assert found.outputs.mean() == pytest.approx(requests.logits.mean(), abs=0.05)
    assert found.labels.mean() == pytest.approx((1 / (1 + np.exp(-requests.theta))).mean(), abs=0.03)
