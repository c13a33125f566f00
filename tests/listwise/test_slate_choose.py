"""Lower bounds, conformal quantiles, the paired form; the trust region; the ensemble evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from slate_cases import list_model, random_scene

from relaygr.core.errors import ConfigError
from relaygr.listwise.choose import Choice, Conformal
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.trust import Trust


def test_lower_bound_prefers_the_certain_list() -> None:
    utility = np.array([[1.0, 3.0, 1.4], [1.0, -0.5, 1.2]])  # [E, G]
    names = ["pointwise", "beam4", "greedy"]
    assert Choice(kappa=0.0)(utility[:, :2], 3, names[:2]) == 1
    assert Choice(kappa=1.0).lower_bounds(utility, 3, names) == pytest.approx([1.0, -0.5, 1.2])
    assert Choice(kappa=1.0)(utility, 3, names) == 2


def test_paired_form_leaves_the_fallback_only_for_a_gain_beyond_doubt() -> None:
    names = ["pointwise", "beam4"]
    # All members agree on a small gain, and differ much on the level.
    agreed = np.array([[1.0, 1.1], [5.0, 5.1], [9.0, 9.1]])
    assert Choice(paired=True)(agreed, 3, names) == 1
    # A larger mean gain that the members do not agree on.
    doubtful = np.array([[5.0, 8.0], [5.0, 4.0], [5.0, 5.0]])
    assert Choice(kappa=0.0)(doubtful, 3, names) == 1
    assert Choice(paired=True)(doubtful, 3, names) == 0
    assert Choice(paired=True)(np.array([[2.0, 2.0]]), 3, names) == 0


def test_equal_lists_go_to_the_first() -> None:
    assert Choice()(np.array([[2.0, 2.0, 2.0]]), 3, ["a", "b", "c"]) == 0


def test_conformal_bound_covers() -> None:
    """A new residual is below the quantile with probability 49 / 61 for 60 residuals and alpha 0.2."""
    random = np.random.default_rng(0)
    covered = []
    for _ in range(2000):
        found = Conformal.fit({(10, "beam4"): random.uniform(-1, 1, 60).tolist()}, alpha=0.2)
        covered.append(0.5 * (found.quantiles[10, "beam4"] + 1))
    assert np.mean(covered) == pytest.approx(49 / 61, abs=0.005)


def test_conformal_buckets_and_the_pooled_quantile() -> None:
    found = Conformal.fit({(5, "greedy"): [0.1] * 20, (5, "beam4"): [2.0] * 20, (9, "mmr"): [7.0]}, alpha=0.1)
    assert found(5, ["greedy", "beam4"]).tolist() == [0.1, 2.0]
    assert (9, "mmr") not in found.quantiles  # one residual is too few
    assert found(9, ["mmr"]).tolist() == [found.pooled] == [2.0]
    choice = Choice(conformal=found)
    assert choice(np.array([[1.0, 2.0]]), 5, ["greedy", "beam4"]) == 0


def test_what_cannot_be_chosen_by() -> None:
    with pytest.raises(ConfigError, match="too few"):
        Conformal.fit({(1, "a"): [0.0, 1.0]}, alpha=0.1)
    with pytest.raises(ConfigError, match="alpha"):
        Conformal.fit({}, alpha=1.0)
    with pytest.raises(ConfigError, match="kappa"):
        Choice(kappa=-1.0)
    with pytest.raises(ConfigError, match="paired"):
        Choice(paired=True, conformal=Conformal({}, 0.0))


def test_region_is_the_top_with_half_of_it_near() -> None:
    scene = random_scene(0, candidates=50, length=6)
    region = Trust().region(scene)
    assert region.columns.tolist() == list(range(30))
    assert (region.near, region.at_least) == (12, 3)
    assert region.holds(np.array([0, 11, 5, 29, 28, 27]))
    assert not region.holds(np.array([0, 11, 12, 29, 28, 27]))


def test_walks_inside_the_region_keep_half_near() -> None:
    scene = random_scene(1, candidates=50, length=6)
    walk = Trust().region(scene).scene.walk
    marks, root = walk.start(), np.zeros(1, dtype=np.int64)
    for t, item in enumerate((29, 20, 15)):
        assert walk.allowed(marks, t)[0, item]
        marks = walk.step(marks, t, root, np.array([item]))
    allowed = walk.allowed(marks, 3)[0]
    assert allowed[:12].all()
    assert not allowed[12:].any()


def test_short_pools_have_no_region_to_leave() -> None:
    scene = random_scene(2, candidates=5, length=4)
    region = Trust().region(scene)
    assert (region.near, region.at_least, len(region.columns)) == (5, 0, 5)


def test_fallback_is_always_inside() -> None:
    for seed in range(30):
        random = np.random.default_rng(seed)
        scene = random_scene(seed, int(random.integers(4, 60)), int(random.integers(1, 5)), shown=2)
        # Rules may push the fallback anywhere.
        forced = np.sort(random.permutation(len(scene))[: scene.length]).astype(np.int32)
        region = Trust(top=int(random.integers(1, 40))).region(scene.with_fallback(forced))
        assert region.scene.fallback is not None
        assert region.columns[region.scene.fallback].tolist() == forced.tolist()
        assert region.holds(region.scene.fallback)


def test_ensemble_has_a_row_a_member() -> None:
    scene = random_scene(3, candidates=8, length=4)
    lists = np.array([[0, 1, 2, 3], [4, 2, 7, 1]], dtype=np.int32)
    models = [list_model(seed) for seed in range(5)]
    found = Rescore(models).evaluate(scene, lists)
    assert found.shape == (5, 2)
    for row, model in zip(found, models, strict=True):
        assert row.tolist() == model(scene, lists).utility.tolist()
    with pytest.raises(ConfigError, match="models"):
        Rescore([])
