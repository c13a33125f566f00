"""Constrained search through the round loop against brute force, and the same in any company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from search_cases import FIRST_TOKEN, Corpus, TableModel, corpus, expected, plan_of, search_of

from relaygr.core.clock import MonotonicClock
from relaygr.generation.catalogue.filters import Filter, Wanted, make_filter
from relaygr.generation.catalogue.tokens import TokenSpec
from relaygr.generation.normalise import Normalization, row_normalisers, segment_normalisers
from relaygr.generation.reference import Row
from relaygr.generation.results import Found, Underflow
from relaygr.generation.rounds import Rounds

NORMALIZATIONS = list(Normalization)


def run(model: TableModel, *searches) -> list[Found]:
    Rounds(model, MonotonicClock()).run(searches)
    outcomes = [search.outcome for search in searches]
    assert all(isinstance(outcome, Found) for outcome in outcomes), outcomes
    return outcomes


def check_equal(found: Found, wanted) -> None:
    assert [row.sid for row in found.rows] == [sid for sid, _ in wanted]
    np.testing.assert_allclose(
        [row.score for row in found.rows], [score for _, score in wanted], rtol=0, atol=1e-5
    )


def filters_of(of: Corpus, rng: np.random.Generator) -> list[Filter | None]:
    ids = rng.permutation(of.index.items).tolist()
    third = len(ids) // 3
    wishes = [
        Wanted(deny=ids[:third]),
        Wanted(deny=ids[: 2 * third + 5]),
        Wanted(allow=ids[:third], deny=ids[: third // 2]),
        Wanted(allow=ids[:2]),
    ]
    return [None, *(make_filter(of.index, wish) for wish in wishes)]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("seed", range(4))
def test_equals_brute_force(seed: int, normalization: Normalization) -> None:
    of = corpus(seed, ((6, 7, 5), (3, 9, 4, 4), (12, 2), (20,))[seed], n=(60, 150, 40, 9)[seed])
    model = TableModel(of.vocab_size)
    levels = of.index.levels
    widths = [[1], [2], [3], [7], [1000], [2, 5, 9, 3], [6, 1, 4, 8], [4, 4, 4, 1], [3, 3, 3, 50]]
    for items in filters_of(of, np.random.default_rng(seed)):
        for prompt, given in enumerate(widths):
            per_level = (given * levels)[:levels] if len(given) == 1 else given[:levels]
            found = run(model, search_of(plan_of(of, per_level, normalization, items), prompt))[0]
            wanted = expected(of, model, prompt, per_level, normalization, items)
            check_equal(found, wanted)
            if len(wanted) == len(of.sids_with(items)):
                assert found.underflow in (None, Underflow.CATALOG_EXHAUSTED)
            elif len(wanted) < per_level[-1]:
                assert found.underflow is Underflow.BEAM_EXHAUSTED
            else:
                assert found.underflow is None


def under_test(row: Row) -> float:
    return float(row_normalisers(torch.from_numpy(row.copy())[None])[0])


def valid_under_test(row: Row) -> float:
    return float(segment_normalisers(row, np.zeros(1, np.int64))[0])


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("steps", [1, 2])
def test_exact_ties_are_in_order_of_score_parent_rank_and_code(steps: int, normalization) -> None:
    of = corpus(11, (5, 6, 6), n=130, skew=1.5)
    model = TableModel(of.vocab_size, steps=steps, spread=1.0)
    normaliser = valid_under_test if normalization is Normalization.VALID else under_test
    tied = 0
    for prompt in range(12):
        for widths in ([4, 4, 4], [5, 9, 30], [2, 3, 11]):
            found = run(model, search_of(plan_of(of, widths, normalization), prompt))[0]
            wanted = expected(of, model, prompt, widths, normalization, normaliser=normaliser)
            assert [(row.sid, row.score) for row in found.rows] == wanted
            tied += len(wanted) - len({score for _, score in wanted})
    assert tied > 50


def test_level_widths_and_results_below_at_and_above_the_width() -> None:
    of = corpus(2, (70, 12, 40), n=12_000, skew=1.2)
    model = TableModel(of.vocab_size)
    for widths in ([64, 256, 512], [32, 32, 7], [32, 32, 32], [32, 32, 300]):
        found = run(model, search_of(plan_of(of, widths), 1))[0]
        check_equal(found, expected(of, model, 1, widths, Normalization.LEVEL))
        assert (found.requested, found.returned, found.underflow) == (widths[-1], widths[-1], None)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_tokens_from_a_table_give_the_same(normalization) -> None:
    sizes = (6, 7, 5)
    rng = np.random.default_rng(0)
    order = FIRST_TOKEN + rng.permutation(18)
    spec = TokenSpec(
        tables=(tuple(order[:6].tolist()), tuple(order[6:13].tolist()), tuple(order[13:].tolist()))
    )
    of = corpus(4, sizes, tokens=spec)
    model = TableModel(of.vocab_size)
    found = run(model, search_of(plan_of(of, [4, 5, 6], normalization), 3))[0]
    check_equal(found, expected(of, model, 3, [4, 5, 6], normalization))


def test_a_group_of_everything_equals_each_alone_bit_for_bit() -> None:
    catalogues = [corpus(seed, sizes, n=200) for seed, sizes in enumerate([(6, 7, 5), (9, 9), (5, 6, 7, 4)])]
    model = TableModel(40)
    plans = []
    for at in range(12):
        of = catalogues[at % 3]
        levels = of.index.levels
        items = filters_of(of, np.random.default_rng(at))[at % 5]
        plan = plan_of(of, [1 + at, 3 + 2 * at, 5, 9][-levels:], NORMALIZATIONS[at % 3], items)
        # Every table has to be within the one model's vocabulary for `full`.
        plans.append(
            replace(plan, seed=at if at % 4 == 0 else None, heads=type(plan.heads)(tokens_of(of), 40))
        )
    alone = [run(model, search_of(plan, at))[0] for at, plan in enumerate(plans)]
    for order in (range(12), reversed(range(12)), np.random.default_rng(0).permutation(12).tolist()):
        order = list(order)
        together = run(model, *(search_of(plans[at], at) for at in order))
        for at, found in zip(order, together, strict=True):
            assert replace(found, timings=alone[at].timings) == alone[at]


def tokens_of(of: Corpus):
    return TokenSpec(tables=tuple(tuple(table) for table in of.tables)).resolve([len(t) for t in of.tables])


def test_a_seed_samples_the_same_again_and_scores_stay_those_of_the_model() -> None:
    of = corpus(2, (20, 30, 10), n=2000)
    model = TableModel(of.vocab_size)
    every = dict(expected(of, model, 0, [600, 6000, 60_000], Normalization.LEVEL))
    plans = [plan_of(of, [8, 8, 8], seed=seed) for seed in (1, 1, 2)]
    first, again, other = (run(model, search_of(plan))[0] for plan in plans)
    assert first.rows == again.rows != other.rows
    for row in (*first.rows, *other.rows):
        assert row.score == pytest.approx(every[row.sid], abs=1e-5)
    assert [row.score for row in other.rows] == sorted((row.score for row in other.rows), reverse=True)
