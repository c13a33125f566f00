"""Metrics against values worked out by hand and against a naive oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.training.metrics import request_metrics, top_order


def test_one_positive_in_second_place() -> None:
    ndcg, hit, auc = request_metrics(np.array([3.0, 2.0, 1.0]), np.array([False, True, False]))
    assert ndcg == pytest.approx(1 / math.log2(3))
    assert hit == 1.0
    assert auc == 0.5


def test_two_positives_first_and_third() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.4])
    positive = np.array([False, True, False, True])
    ndcg, hit, auc = request_metrics(scores, positive)
    assert ndcg == pytest.approx((1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3)))
    assert hit == 1.0
    assert auc == 0.75


def test_more_positives_than_places_can_still_be_perfect() -> None:
    positive = np.arange(30) < 12
    assert request_metrics(-np.arange(30.0), positive) == (1.0, 1.0, 1.0)


def test_positive_behind_the_tenth_place_scores_nothing() -> None:
    positive = np.arange(20) == 10
    ndcg, hit, auc = request_metrics(-np.arange(20.0), positive)
    assert (ndcg, hit) == (0.0, 0.0)
    assert auc == pytest.approx(9 / 19)


def test_equal_scores_keep_the_given_order() -> None:
    scores = np.zeros(100)
    assert top_order(scores, 10).tolist() == list(range(10))
    late = np.arange(100) == 99
    assert request_metrics(scores, late) == (0.0, 0.0, 0.5)


@pytest.mark.parametrize("positive", [np.zeros(3, dtype=bool), np.ones(3, dtype=bool)])
def test_nothing_to_rank(positive: np.ndarray) -> None:
    with pytest.raises(ValueError, match="positive"):
        request_metrics(np.arange(3.0), positive)


def test_scores_that_are_not_numbers() -> None:
    with pytest.raises(ValueError, match="1 of 2 are not finite"):
        request_metrics(np.array([1.0, np.nan]), np.array([True, False]))


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60))
def test_naive_oracle(rows: list[tuple[int, bool]]) -> None:
    if len({positive for _, positive in rows}) < 2:
        return
    scores = np.array([float(score) for score, _ in rows])
    positive = np.array([flag for _, flag in rows])
    ranked = sorted(range(len(rows)), key=lambda i: (-rows[i][0], i))
    dcg = sum(1 / math.log2(place + 2) for place, i in enumerate(ranked[:10]) if rows[i][1])
    ideal = sum(1 / math.log2(place + 2) for place in range(min(10, int(positive.sum()))))
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, first in rows
        if first
        for b, second in rows
        if not second
    ]
    ndcg, hit, auc = request_metrics(scores, positive)
    assert ndcg == pytest.approx(dcg / ideal)
    assert hit == float(any(rows[i][1] for i in ranked[:10]))
    assert auc == pytest.approx(sum(pairs) / len(pairs))
