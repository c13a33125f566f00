"""Similarities of many candidates: row by row, the same as the table of all pairs, and without that table."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from slate_cases import free_budget, random_scene

from relaygr.listwise.generators import similarity as module
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.similarity import Similarities, similarity
from relaygr.listwise.proposal import Generator


@pytest.mark.parametrize("shown", [0, 5])
@pytest.mark.parametrize("vectors", [True, False])
def test_rows_are_those_of_the_table(vectors: bool, shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = random_scene(3, 60, 8, shown=shown)
    if not vectors:
        scene = replace(scene, pool=replace(scene.pool, vectors=None))
    table = similarity(scene, 3)
    monkeypatch.setattr(module, "_ALL", 10)
    rows = Similarities(scene, 3)
    assert len(rows) == len(table)
    for item in range(len(table)):
        np.testing.assert_allclose(rows.row(item), table[item], rtol=0, atol=1e-12)


@pytest.mark.parametrize("generator", [Mmr(), Mmr(positive=True, window=3), Dpp(), Dpp(window=4)])
def test_lists_are_the_same(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = []
    for most in (1000, 10):
        monkeypatch.setattr(module, "_ALL", most)
        scene = random_scene(5, 80, 8, shown=4)
        lists.append(generator.propose(scene, free_budget())[0].picks.tolist())
    assert lists[0] == lists[1]


def test_many_candidates_need_no_table_of_all_pairs() -> None:
    """Which would be 32 MB."""
    scene = random_scene(1, 2000, 10)
    tracemalloc.start()
    try:
        assert Mmr().propose(scene, free_budget())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8e6
