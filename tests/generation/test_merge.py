"""The early-terminating merge and the merge of heads against a full sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.generation.merge import Merged, SortedList, merge_heads, merge_pruned

MERGES = [merge_heads, merge_pruned]
Rows = list[tuple[float, int, int]]


def sorted_list(logprobs: np.ndarray, codes: np.ndarray, keep: int | None = None) -> SortedList:
    order = np.lexsort((codes, -logprobs))
    cut = order[:keep]
    return SortedList(logprobs[cut], codes[cut], complete=len(cut) == len(order))


def full_sort(scores: np.ndarray, lists: list[SortedList], count: int) -> Rows:
    rows = [
        (float(scores[b]) + float(logprob), b, int(code))
        for b, one in enumerate(lists)
        for logprob, code in zip(one.logprobs, one.codes, strict=True)
    ]
    return sorted((row for row in rows if row[0] > -np.inf), key=lambda row: (-row[0], row[1], row[2]))[
        :count
    ]


def rows_of(merged: Merged) -> Rows:
    return list(zip(merged.scores.tolist(), merged.parents.tolist(), merged.codes.tolist(), strict=True))


def random_case(rng: np.random.Generator) -> tuple[np.ndarray, list[SortedList], int]:
    """Few distinct values, so that most sums tie; some lists empty, some cut, some with -inf or above 0."""
    beams = int(rng.integers(1, 7))
    count = int(rng.integers(1, 13))
    step = float(rng.choice([0.5, 1.0, 0.1]))
    scores = -np.sort(rng.integers(0, 4, beams)) * step
    rng.shuffle(scores)
    lists = []
    top = 2 if rng.random() < 0.2 else 0
    for _ in range(beams):
        size = int(rng.integers(0, 15))
        logprobs = rng.integers(-4, top + 1, size) * step
        logprobs[rng.random(size) < 0.05] = -np.inf
        codes = rng.choice(40, size, replace=False)
        lists.append(sorted_list(logprobs.astype(np.float32), codes, max(count, 8) if top == 0 else None))
    return scores, lists, count


def test_both_merges_equal_a_full_sort_on_ten_thousand_cases() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10_000):
        scores, lists, count = random_case(rng)
        wanted = full_sort(scores, lists, count)
        assert rows_of(merge_pruned(scores, lists, count)) == wanted
        assert rows_of(merge_heads(scores, lists, count)) == wanted


@pytest.mark.parametrize("width", [128, 256, 512])
def test_merge_examines_little(width: int) -> None:
    rng = np.random.default_rng(width)
    logits = rng.standard_normal((width, width)) * 2
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    scores = -np.sort(rng.exponential(2.0, width))
    lists = [sorted_list(row, np.arange(width)) for row in logprobs]
    pruned, heads = (merge(scores, lists, width) for merge in (merge_pruned, merge_heads))
    assert rows_of(pruned) == rows_of(heads) == full_sort(scores, lists, width)
    assert pruned.total == width * width
    assert pruned.examined < 0.05 * pruned.total
    assert heads.examined <= 2 * width


def test_when_all_is_equal_all_is_examined() -> None:
    lists = [SortedList(np.full(8, -1.0), np.arange(8)) for _ in range(8)]
    merged = merge_pruned(np.zeros(8), lists, 8)
    assert merged.examined == merged.total == 64
    assert rows_of(merged) == [(-1.0, 0, code) for code in range(8)]


@pytest.mark.parametrize("merge", MERGES)
def test_sums_made_equal_by_rounding_are_ordered_by_code(merge) -> None:
    big = 2.0**53
    lists = [SortedList(np.array([-0.25, -0.5]), np.array([7, 3]))]
    assert big - 0.25 == big - 0.5
    assert rows_of(merge([big], lists, 1)) == [(big, 0, 3)]


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize(
    ("logprobs", "codes"),
    [
        ([-2.0, -1.0], [0, 1]),
        ([-1.0, -1.0], [1, 0]),
        ([-1.0, -1.0], [1, 1]),
        ([np.nan], [0]),
        ([np.inf], [0]),
    ],
)
def test_unsorted_lists_and_lists_without_order_are_refused(merge, logprobs, codes) -> None:
    good = SortedList(np.array([-1.0]), np.array([0]))
    bad = SortedList(np.array(logprobs), np.array(codes))
    with pytest.raises(ValueError, match="list 1"):
        merge([0.0, -1.0], [good, bad], 1)


@pytest.mark.parametrize("merge", MERGES)
def test_lists_cut_too_short_and_bad_scores_are_refused(merge) -> None:
    cut = SortedList(np.array([-1.0, -2.0]), np.array([0, 1]), complete=False)
    assert len(merge([0.0], [cut], 2).scores) == 2
    with pytest.raises(ValueError, match="cut to 2 entries"):
        merge([0.0], [cut], 3)
    for scores in ([np.nan], [np.inf], [0.0, 0.0]):
        with pytest.raises(ValueError, match="scores"):
            merge(scores, [cut], 1)
    with pytest.raises(ValueError, match="count"):
        merge([0.0], [cut], 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 0), max_size=6), min_size=1, max_size=5), st.integers(1, 8))
def test_more_results_begin_with_fewer(values: list[list[int]], count: int) -> None:
    lists = [sorted_list(np.array(one, np.float64), np.arange(len(one))) for one in values]
    scores = np.arange(len(lists)) * -0.5
    rows = rows_of(merge_pruned(scores, lists, count + 1))
    assert rows[:count] == rows_of(merge_pruned(scores, lists, count))
