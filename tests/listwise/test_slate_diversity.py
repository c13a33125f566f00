"""Distances of lists and what each generator is good for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from slate_cases import random_scene

from relaygr.listwise.diversity import embedding_distances, order_distances, report
from relaygr.listwise.proposal import Proposal


def slow_order(a: list[int], b: list[int], universe: set[int]) -> float:
    def pairs(one: list[int]) -> set[tuple[int, int]]:
        inside = set(itertools.combinations(one, 2))
        return inside | {(x, y) for x in one for y in universe - set(one)}

    mine, other = pairs(a), pairs(b)
    return 1.0 - len(mine & other) / len(mine | other) if mine | other else 0.0


def test_order_distance_is_of_partial_orders() -> None:
    random = np.random.default_rng(0)
    for length in (1, 2, 4):
        lists = np.stack([random.permutation(6)[:length] for _ in range(4)]).astype(np.int32)
        found = order_distances(lists)
        universe = set(lists.ravel().tolist())
        for a in range(4):
            for b in range(4):
                wanted = slow_order(lists[a].tolist(), lists[b].tolist(), universe)
                assert found[a, b] == pytest.approx(wanted)
    assert order_distances(np.array([[0, 1], [1, 0]], dtype=np.int32))[0, 1] == 1.0
    assert order_distances(np.array([[0, 1, 2], [0, 2, 1]], dtype=np.int32))[0, 1] == pytest.approx(0.5)


def test_embedding_distance_compares_position_by_position() -> None:
    unit = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = embedding_distances(unit, np.array([[0, 1], [1, 0], [2, 1], [0, 1]], dtype=np.int32))
    assert found[0].tolist() == pytest.approx([0.0, 0.5, 0.5, 0.0])


def test_gain_is_what_is_lost_without_a_generator() -> None:
    scene = random_scene(0, candidates=8, length=3)
    lists = {"pointwise": [0, 1, 2], "greedy": [3, 1, 0], "beam4": [5, 1, 0], "mmr": [5, 1, 0]}
    proposals = [Proposal(np.array(picks, dtype=np.int32), name) for name, picks in lists.items()]
    found = report(scene, proposals[:3], [1.0, 1.5, 2.0])
    assert found.gain == {"pointwise": 0.0, "greedy": 0.0, "beam4": 0.5}
    assert found.best == 2.0
    # Two generators found the best list: neither is needed for it.
    assert report(scene, proposals, [1.0, 1.5, 2.0, 2.0]).gain["beam4"] == 0.0
    assert 0.0 < found.mean_order <= 1.0
    assert found.mean_embedding is not None
    assert 0.0 < found.mean_embedding <= 1.0
    alone = report(scene, proposals[:1], [1.0])
    assert (alone.mean_order, alone.gain) == (0.0, {"pointwise": 1.0})
