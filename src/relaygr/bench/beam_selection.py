"""A round's index work and selection over many semantic ids, on one core, logits given.

Parents are the nodes with the most children, so that no round of as many beams has more to choose from.
Times are processor times of the one thread, which other processes hardly disturb.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from relaygr.bench.beam_case import SIZES, SPECIALS
from relaygr.bench.beam_naive import prepare_one_by_one
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.filters import Filter, Wanted, make_filter
from relaygr.generation.catalogue.index import CatalogueIndex, Int64s
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import stacked
from relaygr.generation.columns import HeadPlan
from relaygr.generation.normalise import Normalization
from relaygr.generation.prepare import prepare
from relaygr.generation.select import select

_PLAIN_RUNS = 5
_SPREAD = 3.0  # of logits
_DENIED_STEP = 750  # every so many-th item is denied: 2,000 of 1.5 million


class SelectionCell(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one round, in milliseconds.

    Attributes:
        columns: of the head, that logits are given for.
        prepare_ms: finding the candidates and where their logits stand; select_ms: choosing of them.
        both_ms: median of the sums.
        denied_ms: as `both_ms`, where the request denies one item in 750.
        looped_ms: candidates found one by one in Python; sorted_ms: chosen by sorting all of them.
    """

    sids: int
    width: int
    level: int
    normalization: str
    candidates: int
    columns: int
    runs: int
    prepare_ms: float
    select_ms: float
    both_ms: float
    denied_ms: float
    looped_ms: float
    sorted_ms: float


class SelectionCase:
    """A catalogue of `sids` semantic ids over 3 levels, with skewed out-degrees."""

    def __init__(self, sids: int, seed: int) -> None:
        self.index = _skewed_index(sids, seed)
        self._heads = HeadPlan(stacked(SIZES, SPECIALS).resolve(SIZES), SPECIALS + sum(SIZES))
        self._filter = make_filter(self.index, Wanted(deny=self.index.items[::_DENIED_STEP].tolist()))

    def parents(self, level: int, width: int) -> Int64s:
        """The nodes above `level` with the most children, in an order that has nothing to do with it.

        Only those that a search reaches in spite of the filter.
        """
        nodes = np.arange(self.index.nodes(level - 1))
        nodes = nodes[self._filter.alive(level - 1, nodes)]
        degrees = np.diff(self.index.ptr[level - 1])[nodes]
        widest: Int64s = nodes[np.argsort(-degrees, kind="stable")[:width]]
        return np.random.default_rng(1).permutation(widest)

    def measure(self, width: int, level: int, normalization: Normalization, runs: int) -> SelectionCell:
        """Index work and selection in turns, after a run that does not count."""
        parents = self.parents(level, width)
        scores = -np.sort(np.random.default_rng(2).random(len(parents)) * 10)
        draws = torch.Generator().manual_seed(0)
        pool = prepare(self.index, level, parents, self._heads, normalization)
        logits = torch.randn(len(parents), pool.head.width, generator=draws) * _SPREAD

        def once(items: Filter | None) -> tuple[float, float]:
            began = time.thread_time()
            found = prepare(self.index, level, parents, self._heads, normalization, items)
            prepared = time.thread_time()
            given = logits if items is None else denied
            began_select = time.thread_time()
            select(found, scores, given, width, normalization)
            return (prepared - began) * 1e3, (time.thread_time() - began_select) * 1e3

        # A filter may leave fewer columns.
        columns = prepare(self.index, level, parents, self._heads, normalization, self._filter).head.width
        denied = torch.randn(len(parents), columns, generator=draws) * _SPREAD
        index, heads = self.index, self._heads
        looped = _timed(lambda: prepare_one_by_one(index, level, parents, heads, normalization), _PLAIN_RUNS)
        ordered = _timed(
            lambda: select(pool, scores, logits, width, normalization, method="sort"), _PLAIN_RUNS
        )
        plain = [once(None) for _ in range(runs + 1)][1:]
        filtered = [once(self._filter) for _ in range(runs + 1)][1:]
        return SelectionCell(
            sids=self.index.n_sids,
            width=width,
            level=level,
            normalization=str(normalization),
            candidates=len(pool.nodes),
            columns=pool.head.width,
            runs=runs,
            prepare_ms=statistics.median(first for first, _ in plain),
            select_ms=statistics.median(second for _, second in plain),
            both_ms=statistics.median(map(sum, plain)),
            denied_ms=statistics.median(map(sum, filtered)),
            looped_ms=looped,
            sorted_ms=ordered,
        )


def measure_selection(
    sids: int, widths: tuple[int, ...], runs: int, seed: int, tell: Callable[[str], None]
) -> list[SelectionCell]:
    """All widths, the levels below the first, all normalisations; on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tell(f"selection: building a catalogue of {sids:,} semantic ids")
        case, cells = SelectionCase(sids, seed), []
        for width in widths:
            for level in range(2, len(SIZES) + 1):
                for normalization in Normalization:
                    tell(f"selection: width {width}, level {level}, {normalization}")
                    cells.append(case.measure(width, level, normalization, runs))
        return cells
    finally:
        torch.set_num_threads(threads)


def _timed(call: Callable[[], object], runs: int) -> float:
    """Median milliseconds of the thread, after a call that does not count."""
    times = []
    for _ in range(runs + 1):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e3)
    return statistics.median(times[1:])


def _skewed_index(sids: int, seed: int) -> CatalogueIndex:
    rng = np.random.default_rng(seed)
    rows, size = sids * 5 // 4, SIZES[0]

    def skewed(power: float) -> Int64s:
        weights = (np.arange(size) + 20.0) ** -power
        drawn: Int64s = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(rows))
        return drawn.clip(0, size - 1)

    first = skewed(0.75)
    second = (skewed(0.75) * 2_654_435_761 + first * 40_503) % size
    third = (skewed(0.3) + second * 31) % size
    codes = np.unique(np.stack([first, second, third], axis=1).astype(np.int64), axis=0)
    codes = rng.permutation(codes)[:sids]
    return build_index(Rows(item_ids=np.arange(len(codes)), codes=codes), SIZES).index
