"""Constrained search on a real decoder: brute force over whole forwards, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoder_searches import DecoderModel, WholeForwards, decoder_of, decoder_search, pool_of
from search_cases import Corpus, corpus, plan_of

from relaygr.core.clock import MonotonicClock
from relaygr.generation.catalogue.filters import Wanted, make_filter
from relaygr.generation.normalise import Normalization
from relaygr.generation.results import Found, ItemLimits
from relaygr.generation.rounds import Rounds
from relaygr.generation.search import SearchPlan
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.models.decoder.decoder import Decoder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The products are tiny; threads would only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SIZES = ((8, 9, 7), (6, 5, 4, 5), (20, 3))


def corpus_at(at: int) -> Corpus:
    """Skewed out-degrees, several items an id; catalogues of 2, 3 and 4 levels."""
    return corpus(at, SIZES[at % 3], n=(150, 250, 60)[at % 3], skew=2.0)


def run(decoder: Decoder, plans: list[SearchPlan], numbers: list[int], worker=None) -> list[Found]:
    pool = pool_of(decoder)
    searches = [
        decoder_search(decoder, pool, plan, number) for plan, number in zip(plans, numbers, strict=True)
    ]
    Rounds(DecoderModel(decoder), MonotonicClock(), worker).run(searches)
    assert pool.used_bytes == 0
    outcomes = [search.outcome for search in searches]
    assert all(isinstance(outcome, Found) for outcome in outcomes), outcomes
    return outcomes


def widths_of(of: Corpus) -> list[list[int]]:
    levels = of.index.levels
    same = [[width] * levels for width in (1, 2, 7, 300)]
    return [*same, [3, 8, 5, 4][-levels:], [9, 2, 4, 60][-levels:], [5] * (levels - 1) + [2]]


@pytest.mark.parametrize("at", range(3))
def test_equals_brute_force_over_whole_forwards(at: int) -> None:
    of = corpus_at(at)
    decoder = decoder_of(of.vocab_size, at, CpuBeams())
    whole = WholeForwards(of, decoder, at)
    ids = np.random.default_rng(at).permutation(of.index.items).tolist()
    half = len(ids) // 2
    checked = 0
    for wish, gone in (
        (None, set()),
        (Wanted(deny=ids[:half]), set(ids[:half])),
        (Wanted(allow=ids[:20], deny=ids[:4]), {*ids[:4], *ids[20:]}),
    ):
        items = None if wish is None else make_filter(of.index, wish)
        cases = [(widths, normalization) for widths in widths_of(of) for normalization in Normalization]
        plans = [plan_of(of, widths, normalization, items) for widths, normalization in cases]
        for case, found in zip(cases, run(decoder, plans, [at] * len(plans)), strict=True):
            wanted = whole.expected(*case, items)
            scores = np.array([score for _, score in wanted])
            np.testing.assert_allclose([row.score for row in found.rows], scores, rtol=0, atol=1e-5)
            # Rows nearer to one another than fp32 can tell may stand in either order.
            if len(scores) < 2 or np.diff(-scores).min() > 2e-5:
                assert [row.sid for row in found.rows] == [sid for sid, _ in wanted]
                checked += 1
            assert not gone & {one for row in found.rows for one in row.items}
    assert checked >= 50


@pytest.mark.parametrize(
    "mode",
    [
        "split",
        pytest.param("joint", marks=pytest.mark.slow),
        pytest.param("replicate", marks=pytest.mark.slow),
    ],
)
def test_any_company_gives_the_same_bits(mode: str) -> None:
    """Of widths, catalogue versions, depths, filters and normalisations, with and without a worker."""
    catalogues = [corpus_at(at) for at in range(3)]
    vocab_size = max(of.vocab_size for of in catalogues)
    decoder = decoder_of(vocab_size, 7, CpuBeams(), mode)
    plans: list[SearchPlan] = []
    for number in range(10):
        of = catalogues[number % 3]
        wide = replace(of, heads=type(of.heads)(of.heads._tokens, vocab_size))
        wish = Wanted(deny=of.index.items[number::3].tolist())
        plans.append(
            plan_of(
                wide,
                widths_of(of)[number % 7],
                list(Normalization)[number % 3],
                make_filter(of.index, wish) if number % 2 else None,
                limits=ItemLimits(per_sid=1 + number % 3),
                seed=number if number % 5 == 0 else None,
            )
        )
    alone = [run(decoder, [plan], [number])[0] for number, plan in enumerate(plans)]
    orders = [list(range(10)), list(range(9, -1, -1)), [3, 1, 4, 9, 2, 6], [5, 8]]
    with ThreadPoolExecutor(1) as worker:
        for order in orders:
            together = run(decoder, [plans[number] for number in order], order, worker)
            for number, found in zip(order, together, strict=True):
                assert replace(found, timings=alone[number].timings) == alone[number]
