"""One round: thresholds against full sorts, ties, out-degrees, probabilities of zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_cases import corpus

from relaygr.generation.catalogue.errors import FilterError
from relaygr.generation.catalogue.tokens import TokenSpec, stacked
from relaygr.generation.columns import HeadPlan
from relaygr.generation.normalise import NonFiniteError, Normalization
from relaygr.generation.prepare import Pool, prepare
from relaygr.generation.select import Beams, best, select

ROOT = np.zeros(1, np.int64)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-3, 3), max_size=40), st.integers(0, 45))
def test_best_is_a_stable_sort_cut_off(keys: list[int], count: int) -> None:
    values = np.array(keys, np.float64)
    count = min(count, len(keys))
    wanted = np.lexsort((np.arange(len(keys)), -values))[:count]
    assert best(values, count).tolist() == wanted.tolist()


def first_round(sizes: tuple[int, ...] = (40, 3)) -> tuple[Pool, int]:
    of = corpus(0, sizes, n=300, skew=1.0)
    return prepare(of.index, 1, ROOT, of.heads, Normalization.LEVEL), of.index.nodes(1)


def check_same(a: Beams, b: Beams) -> None:
    for name in ("nodes", "scores", "parents", "codes"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist()
    assert (a.candidates, a.cut, a.impossible) == (b.candidates, b.cut, b.impossible)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("normalization", list(Normalization))
def test_threshold_equals_the_sort_of_everything(normalization, steps, seed) -> None:
    of = corpus(3, (30, 40, 5), n=2000)
    generator = torch.Generator().manual_seed(1)
    for level in (1, 2, 3):
        parents = (
            ROOT if level == 1 else np.random.default_rng(level).permutation(of.index.nodes(level - 1))[:9]
        )
        pool = prepare(of.index, level, parents, of.heads, normalization)
        logits = torch.randn(len(parents), pool.head.width, generator=generator)
        if steps:
            logits = (logits * steps).round() / steps
        scores = np.repeat([-1.0, -2.0, -3.0], 3)[: len(parents)]
        for width in (1, 2, 7, 50, 5000):
            found = [
                select(pool, scores, logits, width, normalization, seed=seed, method=method)
                for method in ("threshold", "sort")
            ]
            check_same(*found)
            assert (np.diff(found[0].scores) <= 0).all()
            assert found[0].cut == (width < len(pool.nodes))


def test_equal_candidates_come_in_order_of_parent_rank_and_code() -> None:
    of = corpus(5, (6, 30), n=400, skew=1.0)
    parents = np.array([4, 0, 2], np.int64)  # ranks are places in this list, not node numbers
    pool = prepare(of.index, 2, parents, of.heads, Normalization.LEVEL)
    beams = select(pool, np.full(3, -1.5), torch.zeros(3, 30), 50, Normalization.LEVEL)
    pairs = list(zip(beams.parents.tolist(), beams.codes.tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert len(pairs) == 50


@pytest.mark.parametrize("width", [1, 2, 3, 64])
def test_a_parent_with_far_more_children_than_the_width_loses_none(width: int) -> None:
    # One favourite code is outside of the catalogue, the best child is the last of 5,000.
    of = corpus(1, (2, 8192), n=20_000, skew=1.0)
    pool = prepare(of.index, 2, np.array([0, 1]), of.heads, Normalization.LEVEL)
    logits = torch.zeros(2, 8192)
    outside = np.setdiff1d(np.arange(8192), pool.codes)
    logits[0, outside] = 50.0
    last = int(pool.codes[pool.starts[1] - 1])
    logits[0, last] = 40.0
    logits[1, int(outside[0])] = 60.0
    beams = select(pool, np.zeros(2), logits, width, Normalization.LEVEL)
    assert pool.starts[1] > 2 * width
    assert (beams.parents[0], beams.codes[0]) == (0, last)
    assert len(beams.nodes) == width


@pytest.mark.parametrize("normalization", list(Normalization))
def test_probability_zero_is_never_selected(normalization) -> None:
    of = corpus(0, (9, 3), n=300, skew=1.0)
    pool = prepare(of.index, 1, ROOT, of.heads, normalization)
    logits = torch.full((1, pool.head.width), -torch.inf)
    nothing = select(pool, np.zeros(1), logits, 4, normalization)
    assert (len(nothing.nodes), nothing.impossible, nothing.cut) == (0, 9, False)
    place = pool.gather[2:4]
    logits[0, place] = 0.0
    two = select(pool, np.zeros(1), logits, 4, normalization)
    assert two.codes.tolist() == [2, 3]
    assert two.scores.tolist() == pytest.approx([-np.log(2)] * 2)
    assert (two.impossible, two.cut) == (7, False)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("normalization", list(Normalization))
def test_not_a_number_is_an_error(normalization, bad: float) -> None:
    of = corpus(0, (9, 3), n=300, skew=1.0)
    pool = prepare(of.index, 1, ROOT, of.heads, normalization)
    logits = torch.zeros(1, pool.head.width)
    logits[0, pool.gather[4]] = bad
    with pytest.raises(NonFiniteError):
        select(pool, np.zeros(1), logits, 4, normalization)


def test_logits_of_another_shape_are_refused() -> None:
    pool, _ = first_round()
    with pytest.raises(ValueError, match="logits"):
        select(pool, np.zeros(1), torch.zeros(1, 41), 4, Normalization.LEVEL)
    with pytest.raises(ValueError, match="logits"):
        select(pool, np.zeros(1), torch.zeros(2, 40), 4, Normalization.LEVEL)


def test_a_sample_follows_the_probabilities() -> None:
    pool, nodes = first_round((4, 3))
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])
    logits = torch.from_numpy(np.log(probabilities).astype(np.float32))[None]
    first = [
        int(select(pool, np.zeros(1), logits, 1, Normalization.LEVEL, seed=seed).codes[0])
        for seed in range(4000)
    ]
    share = np.bincount(first, minlength=nodes) / 4000
    np.testing.assert_allclose(share, probabilities, atol=0.025)


def test_only_needed_columns_are_asked_for() -> None:
    of = corpus(2, (16, 64, 64), n=100)
    shuffled = TokenSpec(tables=tuple(tuple(reversed(table)) for table in of.tables))
    table = HeadPlan(shuffled.resolve((16, 64, 64)), of.vocab_size)
    codes = np.array([3, 60, 3], np.uint16)
    assert of.heads.of(2, Normalization.LEVEL, codes).columns == slice(of.tables[1][0], of.tables[1][0] + 64)
    assert of.heads.of(2, Normalization.FULL, codes).columns is None
    narrow = of.heads.of(2, Normalization.VALID, codes)
    assert narrow.columns.tolist() == [of.tables[1][3], of.tables[1][60]]
    assert narrow.place[codes].tolist() == [0, 1, 0]
    assert of.heads.of(2, Normalization.VALID, np.arange(17)).columns == slice(19, 83)
    assert table.of(2, Normalization.LEVEL, codes).columns.tolist() == of.tables[1][::-1]
    assert table.tokens(2, np.array([0, 63])).tolist() == [of.tables[1][63], of.tables[1][0]]
    assert stacked((2, 3), 5).bases == (5, 7)


class OddFilter:
    everything = False

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def alive(self, level: int, nodes: np.ndarray) -> object:
        return self.answer(nodes) if callable(self.answer) else self.answer


@pytest.mark.parametrize(
    "answer",
    [
        None,
        lambda nodes: np.ones(len(nodes) + 1, np.bool_),
        lambda nodes: np.ones(len(nodes), np.int8),
        lambda nodes: np.zeros(len(nodes), np.bool_),
    ],
)
def test_a_mask_that_is_none_or_kills_a_living_beam_is_an_error(answer) -> None:
    of = corpus(2)
    with pytest.raises(FilterError):
        prepare(of.index, 2, np.array([0, 1]), of.heads, Normalization.LEVEL, OddFilter(answer))
