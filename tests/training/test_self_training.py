"""Retraining on own logs: with exploration lists stay diverse, without it the catalogue collapses."""

from __future__ import annotations

import numpy as np
import pytest

from relaygr.training.slate.self_training import Diversity, SelfTraining, diversity, self_train
from relaygr.training.slate.world import World, WorldConfig

KEPT = 0.8


def kept(world: World, settings: SelfTraining) -> dict[str, float]:
    rounds = self_train(world, settings)
    assert len(rounds) == settings.rounds + 1
    assert rounds[-1].utility > rounds[0].utility  # it learns something, with exploration or without
    return rounds[-1].kept(rounds[0])


def check(world: World, requests: int, explore: float, epochs: int) -> None:
    free = kept(world, SelfTraining(requests=requests, explore=explore, epochs=epochs))
    assert min(free.values()) >= KEPT, free
    bound = kept(world, SelfTraining(requests=requests, explore=0.0, epochs=epochs))
    assert bound["catalogue_share"] < 0.65, bound


def test_exploration_keeps_the_catalogue() -> None:
    check(World(WorldConfig(items=300, bias=1.0)), requests=200, explore=0.3, epochs=20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exploration_keeps_the_catalogue_of_the_reference_world(seed: int) -> None:
    check(World(WorldConfig(items=1000, seed=seed)), requests=1000, explore=0.25, epochs=0)


def test_measures_of_known_lists() -> None:
    world = World(WorldConfig(items=100, topics=10, candidates=20, length=5))
    requests = world.requests(3, 0)
    same = np.zeros((3, 5), dtype=np.int32) + np.arange(5, dtype=np.int32)
    found = diversity(requests, same)
    items = requests.items[:, :5]
    assert found.catalogue_share == len(set(items.reshape(-1).tolist())) / 100
    cosines = [
        1.0 - float(world.vectors[a] @ world.vectors[b])
        for row in items.tolist()
        for at, a in enumerate(row)
        for b in row[at + 1 :]
    ]
    assert found.distance == pytest.approx(np.mean(cosines) / 2, abs=1e-6)
    shares = np.unique(world.topics[items], return_counts=True)[1] / items.size
    assert found.topic_entropy == pytest.approx(-(shares * np.log(shares)).sum())
    half = Diversity(found.distance / 2, found.topic_entropy, found.catalogue_share, 0.0)
    assert half.kept(found)["distance"] == pytest.approx(0.5)
