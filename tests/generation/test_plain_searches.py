"""The plain ways that the benchmark compares with find what the system finds: rows, order, scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from decoder_searches import DecoderModel, decoder_of, decoder_search, pool_of, prompt_of
from search_cases import FIRST_TOKEN, Corpus, TableContext, TableModel, corpus, plan_of

from relaygr.bench.beam_naive import HostMaskSearch, NaiveBeams, SortingSearch, tree_of
from relaygr.core.clock import MonotonicClock
from relaygr.generation.catalogue.tokens import TokenSpec
from relaygr.generation.normalise import Normalization
from relaygr.generation.results import Found
from relaygr.generation.rounds import Rounds
from relaygr.generation.search import Search, SearchPlan
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.models.decoder.decoder import Decoder

SIZES = ((8, 9, 7), (6, 5, 4, 5), (20, 3))
WIDTHS = (1, 2, 7, 300)
STEPS_BACK = pytest.mark.parametrize("kind", [HostMaskSearch, SortingSearch])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The products are tiny; threads would only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def corpus_at(at: int) -> Corpus:
    return corpus(at, SIZES[at % 3], n=(150, 250, 60)[at % 3], skew=2.0)


def run(model: Any, searches: Sequence[Search[Any]]) -> list[Found]:
    Rounds(model, MonotonicClock()).run(searches)
    outcomes = [search.outcome for search in searches]
    assert all(isinstance(outcome, Found) for outcome in outcomes), outcomes
    return outcomes  # type: ignore[return-value]


def on_decoder(decoder: Decoder, plans: Sequence[SearchPlan], kind: type[Search[Any]]) -> list[Found]:
    pool = pool_of(decoder)
    searches = [decoder_search(decoder, pool, plan, number, kind) for number, plan in enumerate(plans)]
    return run(DecoderModel(decoder), searches)


@pytest.mark.parametrize("at", range(3))
def test_the_baseline_finds_the_same_rows(at: int) -> None:
    """Its prompts are in every row, its scores fp32: equal up to that."""
    of = corpus_at(at)
    decoder = decoder_of(of.vocab_size, at, CpuBeams())
    bases = [table[0] for table in of.tables]
    naive = NaiveBeams(decoder, tree_of(of.index), bases, 8 << 20)
    ordered = 0
    for width in WIDTHS:
        plans = [plan_of(of, [width] * of.index.levels, Normalization.FULL) for _ in range(6)]
        for number, found in enumerate(on_decoder(decoder, plans, Search)):
            rows = naive.generate(prompt_of(number, of.vocab_size).tolist(), width)
            scores = [row.score for row in found.rows]
            assert len(rows) == len(scores) == min(width, of.index.n_sids)
            np.testing.assert_allclose([score for _, score in rows], scores, rtol=0, atol=1e-5)
            gaps = -np.diff(scores)
            # Rows nearer to one another than fp32 can tell may stand in either order.
            if not len(gaps) or gaps.min() > 2e-5:
                ordered += 1
                assert [sid for sid, _ in rows] == [row.sid for row in found.rows]
            elif width >= of.index.n_sids:
                assert {sid for sid, _ in rows} == {row.sid for row in found.rows}
    assert ordered >= 12
    assert decoder.mode == "auto"


@STEPS_BACK
@pytest.mark.parametrize("at", range(3))
def test_a_step_back_gives_the_same_bits(at: int, kind: type[Search[Any]]) -> None:
    of = corpus_at(at)
    decoder = decoder_of(of.vocab_size, at, CpuBeams())
    widths = [[width] * of.index.levels for width in WIDTHS]
    widths += [[3, 8, 5, 4][-of.index.levels :], [5] * (of.index.levels - 1) + [2]]
    plans = [plan_of(of, each, normalization) for each in widths for normalization in Normalization]
    for one, other in zip(on_decoder(decoder, plans, kind), on_decoder(decoder, plans, Search), strict=True):
        assert replace(one, timings=other.timings) == other


@STEPS_BACK
def test_a_step_back_keeps_the_order_of_ties(kind: type[Search[Any]]) -> None:
    """Scores take few values, tokens stand anywhere: whatever ties is in order of parent rank and code."""
    tables = ((11, 3, 7, 5, 9, 4), (20, 26, 21, 25, 22, 24, 23), (30, 34, 31, 33, 32))
    tied = 0
    for seed in range(12):
        of = corpus(seed, n=80, tokens=TokenSpec(tables=tables) if seed % 2 else None)
        model = TableModel(of.vocab_size, steps=1)
        plans = [plan_of(of, widths, one) for widths in ([4, 9, 12], [50] * 3) for one in Normalization]
        pairs = [
            run(model, [kind(plan, TableContext(seed), lambda _: None) for plan in plans])
            for kind in (kind, Search)
        ]
        for one, other in zip(*pairs, strict=True):
            assert replace(one, timings=other.timings) == other
            tied += len(other.rows) - len({row.score for row in other.rows})
    assert tied > 100


def test_a_baseline_that_reads_other_columns_finds_other_rows() -> None:
    """So that equal rows above say something."""
    of = corpus_at(0)
    decoder = decoder_of(of.vocab_size, 0, CpuBeams())
    bases = [table[0] for table in of.tables]
    assert bases[0] == FIRST_TOKEN
    tokens = prompt_of(0, of.vocab_size).tolist()
    right = NaiveBeams(decoder, tree_of(of.index), bases, 8 << 20).generate(tokens, 7)
    wrong = NaiveBeams(decoder, tree_of(of.index), [bases[0] + 1, *bases[1:]], 8 << 20).generate(tokens, 7)
    assert right != wrong
