"""Semantic ids: nearest codes by brute force, determinism, collisions, new items, reports."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import ConfigError
from relaygr.generation.sids.build import add_items, build_sids
from relaygr.generation.sids.collisions import digits, ids_of, reassign
from relaygr.generation.sids.kmeans import distinct_rows, fit_clusters
from relaygr.generation.sids.nearest import nearest
from relaygr.generation.sids.quantise import Codebooks, SidConfig, fit_codebooks
from relaygr.generation.sids.report import drift


def clustered(n: int, dim: int = 8, groups: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = 4 * rng.standard_normal((groups, dim))
    return (centres[rng.integers(groups, size=n)] + rng.standard_normal((n, dim))).astype(np.float32)


def brute(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    difference = points[:, None].astype(np.float64) - centroids[None]
    return np.square(difference).sum(axis=2).argmin(axis=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 12), st.sampled_from([1, 3, 16]))
def test_nearest_is_brute_force_and_ties_go_to_the_lower_index(seed: int, n: int, k: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    # Few different values far from 0: ties and near ties that a float32 product cannot tell apart.
    points = (rng.integers(-1, 2, (n, dim)) + 1000 * rng.integers(0, 2)).astype(np.float32)
    centroids = (rng.integers(-1, 2, (k, dim)) + 1000 * rng.integers(0, 2)).astype(np.float32)
    codes, distances = nearest(points, centroids)
    assert codes.tolist() == brute(points, centroids).tolist()
    expected = np.square(points.astype(np.float64) - centroids[codes]).sum(axis=1)
    assert distances.tolist() == expected.tolist()
    alone = [int(nearest(points[i : i + 1], centroids)[0][0]) for i in range(n)]
    assert codes.tolist() == alone


def test_a_point_has_one_code_alone_or_in_any_batch() -> None:
    points = clustered(3000, 24)
    books, _ = fit_codebooks(points, SidConfig(sizes=(32, 32), passes=5))
    codes = books.encode(points)
    for rows in (slice(0, 1), slice(17, 50), slice(1999, 3000)):
        assert (books.encode(points[rows]) == codes[rows]).all()


@pytest.mark.parametrize("batch", [100, 10_000])
def test_every_cluster_is_filled_and_centroids_are_means(batch: int) -> None:
    points = clustered(2000)
    found = fit_clusters(points, 50, np.random.default_rng(1), 20, batch)
    counts = np.bincount(found.codes, minlength=50)
    assert counts.min() > 0
    assert found.codes.tolist() == brute(points, found.centroids).tolist()
    start = np.square(points - points.mean(axis=0)).sum(axis=1).mean()
    assert found.distances.mean() < 0.5 * start


def test_empty_clusters_move_to_far_points() -> None:
    # Many copies of one point and a few far ones: a sampled start sees copies only.
    points = np.zeros((20_000, 4), dtype=np.float32)
    points[-5:] = 100 + 10 * np.arange(20, dtype=np.float32).reshape(5, 4)
    found = fit_clusters(points, 6, np.random.default_rng(0), 10, 1000)
    assert distinct_rows(points) == 6
    assert found.distances.max() == 0
    assert len(set(found.codes[-5:].tolist())) == 5


def test_equal_seeds_give_equal_codebooks_and_others_do_not() -> None:
    points = clustered(3000)
    made = [
        fit_codebooks(points, SidConfig(sizes=(16, 16), batch=500, passes=4, seed=seed))[0]
        for seed in (3, 3, 4)
    ]
    for one, other in zip(made[0].centroids, made[1].centroids, strict=True):
        assert one.tobytes() == other.tobytes()
    assert made[0].centroids[0].tobytes() != made[2].centroids[0].tobytes()


def test_fewer_points_than_centroids_shrink_a_level_and_are_told() -> None:
    points = clustered(10)
    books, notes = fit_codebooks(np.concatenate([points, points]), SidConfig(sizes=(64, 8)))
    assert books.sizes == (10, 1)
    assert notes[0] == "level 1: 64 centroids asked, 10 different points, so 10"
    assert np.abs(books.decode(books.encode(points)) - books.prepare(points)).max() < 1e-5


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("centre", [False, True])
def test_centring_and_length(centre: bool, normalise: bool) -> None:
    points = clustered(500) + np.float32(5)
    books, _ = fit_codebooks(points, SidConfig(sizes=(8,), centre=centre, normalise=normalise))
    prepared = books.prepare(points)
    moved = points - points.mean(axis=0) if centre else points
    expected = moved / np.linalg.norm(moved, axis=1, keepdims=True) if normalise else moved
    assert np.abs(prepared - expected).max() < 1e-4
    if normalise and not centre:
        assert (books.prepare(np.zeros((1, 8), dtype=np.float32)) == 0).all()


def test_each_level_leaves_less() -> None:
    points = clustered(3000)
    made = build_sids(np.arange(3000), points, SidConfig(sizes=(16, 16, 16)))
    left = [level.residual_energy for level in made.report.levels]
    assert 1 > left[0] > left[1] > left[2] > 0
    assert made.report.reconstruction_error == left[2]
    prepared = made.codebooks.prepare(points)
    error = np.square(prepared - made.codebooks.decode(made.codes)).sum() / np.square(prepared).sum()
    assert made.report.reconstruction_error == pytest.approx(error, rel=1e-5)
    assert all(0 < level.perplexity <= level.used <= level.size for level in made.report.levels)


def test_share_keeps_items_together() -> None:
    made = build_sids(np.arange(400), clustered(400), SidConfig(sizes=(4, 4)))
    which, counts = ids_of(made.codes)
    assert made.report.sids == len(counts)
    assert made.report.largest_sid == counts.max()
    assert made.report.collision_rate == (counts[which] > 1).mean()


def test_digits_number_items_by_priority_then_id() -> None:
    codes = np.array([[1, 2], [0, 0], [1, 2], [1, 2]], dtype=np.int32)
    numbers = digits(codes, np.array([1.0, 9, 3, 3]), np.array([40, 10, 30, 20]))
    assert numbers.tolist() == [2, 0, 1, 0]
    later = digits(codes[:2], np.zeros(2), np.array([7, 8]), taken=codes)
    assert later.tolist() == [3, 1]


def test_digit_gives_every_item_its_own_id() -> None:
    made = build_sids(np.arange(400), clustered(400), SidConfig(sizes=(4, 4), collision="digit"))
    assert made.levels == 3
    assert made.report.largest_sid == 1
    assert made.report.collision_rate == 0
    assert made.report.levels[2].residual_energy is None
    assert made.sizes[2] == made.codes[:, 2].max() + 1


def test_reassign_moves_the_cheapest_item_to_the_nearest_free_code() -> None:
    books = Codebooks(
        (np.array([[0.0], [10], [11], [30]], dtype=np.float32),), np.zeros(1, np.float32), False
    )
    points = np.array([[10.1], [10.2], [9.0], [0.0]], dtype=np.float32)
    codes = books.encode(points)
    assert codes[:, 0].tolist() == [1, 1, 1, 0]
    moved, what = reassign(books, points, codes, neighbours=2)
    # 10.1 keeps its code. To the free code 11, 10.2 adds .60 and 9.0 adds 3; 30 is not among the nearest two.
    assert moved[:, 0].tolist() == [1, 2, 1, 0]
    assert (what.moved, what.left) == (1, 2)
    assert what.added == pytest.approx(0.8**2 - 0.2**2, abs=1e-5)
    further, what = reassign(books, points, codes, neighbours=3)
    assert further[:, 0].tolist() == [1, 2, 3, 0]
    assert (what.moved, what.left) == (2, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 60), st.integers(1, 8))
def test_reassign_keeps_prefixes_and_never_adds_collisions(seed: int, n: int, neighbours: int) -> None:
    points = clustered(n, 4, 3, seed)
    books, _ = fit_codebooks(points, SidConfig(sizes=(3, 8), passes=3, seed=seed))
    codes = books.encode(points)
    moved, what = reassign(books, points, codes, neighbours)
    assert (moved[:, 0] == codes[:, 0]).all()
    assert set(map(tuple, codes.tolist())) <= set(map(tuple, moved.tolist()))
    assert len(ids_of(moved)[1]) == len(ids_of(codes)[1]) + what.moved
    assert what.added >= -1e-9
    assert (moved != codes).any(axis=1).sum() == what.moved


@pytest.mark.parametrize("collision", ["share", "digit", "reassign"])
def test_new_items_leave_old_ids_alone(collision: str) -> None:
    points = clustered(600)
    config = SidConfig(sizes=(6, 128), collision=collision)
    old = build_sids(np.arange(0, 1200, 2), points, config)
    fresh = points[:20] + np.float32(0.01)
    if collision == "digit":
        fresh = fresh[:1] + np.float32(50)  # whose id nobody has, so that there is a digit left
    items = np.arange(1, 2 * len(fresh), 2)
    both = add_items(old, items, fresh)
    assert (both.codes_of(old.item_ids) == old.codes).all()
    assert (both.codes_of(items)[:, :1] == old.codebooks.encode(fresh)[:, :1]).all()
    assert (np.diff(both.item_ids) > 0).all()
    if collision == "reassign":
        assert len(ids_of(both.codes)[1]) > len(ids_of(old.codes)[1])
    assert (old.codes_of(np.array([-5]))[0] == -1).all()
    with pytest.raises(ConfigError, match="0 has an id already"):
        add_items(old, np.array([0]), points[:1])


def test_digits_that_run_out_are_an_error() -> None:
    points = np.repeat(clustered(3), 2, axis=0)
    old = build_sids(np.arange(6), points, SidConfig(sizes=(3,), collision="digit"))
    with pytest.raises(ConfigError, match="9 would be number 2 of its id, limit 1"):
        add_items(old, np.array([9]), points[:1])


def test_items_outside_the_fit_are_encoded_as_new_ones() -> None:
    points = clustered(300)
    fitted = np.arange(200)
    made = build_sids(np.arange(300), points, SidConfig(sizes=(8, 8)), fitted=fitted)
    alone = build_sids(np.arange(200), points[:200], SidConfig(sizes=(8, 8)))
    assert (made.codes[:200] == alone.codes).all()
    assert (made.codes[200:] == alone.codebooks.encode(points[200:])).all()
    assert made.report.notes[-1] == "100 of 300 items encoded with codebooks of the others"


def test_drift_sees_new_names_and_new_groups() -> None:
    items = np.array([1, 2, 3, 4])
    old = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.int32)
    renamed = drift(items, old, items, 1 - old)
    assert renamed.changed == (1.0, 1.0)
    assert renamed.regrouped == (0.0, 0.0)
    mixed = drift(
        items, old, np.array([2, 3, 4, 9]), np.array([[0, 1], [1, 0], [0, 1], [5, 5]], dtype=np.int32)
    )
    assert (mixed.common, mixed.added, mixed.removed) == (3, 1, 1)
    assert mixed.changed == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert mixed.regrouped == (pytest.approx(1 / 3), 0.0)


def test_bad_input_is_named() -> None:
    points = clustered(5)
    config = SidConfig(sizes=(2,))
    with pytest.raises(ConfigError, match="7 stands more than once"):
        build_sids(np.array([7, 1, 7, 2, 3]), points, config)
    points[3, 1] = np.nan
    with pytest.raises(ConfigError, match="row 3 is not finite"):
        build_sids(np.arange(5), points, config)
    with pytest.raises(ConfigError, match="no item to fit"):
        build_sids(np.arange(0), points[:0], config)
    with pytest.raises(ConfigError, match="0 levels"):
        SidConfig(sizes=())
    with pytest.raises(ConfigError, match=r"sids\.sizes"):
        SidConfig(sizes=(4, 0))
