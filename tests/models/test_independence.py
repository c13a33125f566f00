"""H2: a score is a function of model, prefix, query time and candidate, for every variant.

Not of the other candidates, of micro-batches, of batch mates, of where K/V lie or of how they were cut: to
1e-12 in float64, and to the bit with fixed row tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from formulas.maths import Row
from variant_cases import CASES, random_model, random_row, row_input

from relaygr.kernels.cpu import AtenRoute, BlockedKernel, OneDnnRoute
from relaygr.kernels.interface import Kernel, KvStore
from relaygr.kernels.reference import ReferenceKernel
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool
from relaygr.memory.stores import PagedKv, PrivateKv
from relaygr.models.ranker import Ranker

NAMES = (
    "relay-mixed-0",
    "relay-time-each",
    "meta-forward-slots",
    "meta-ages-slots",
    "meta-two-way-window-tail",
    "nvidia-slots",
    "nvidia-two-way-window",
    "nvidia-two-head-layers",
    "nvidia-mlps-relu-last",
    "research",
    "research-position",
    "transformer-slots",
    "transformer-window",
    "transformer-time-each",
)
EVENTS, CANDIDATES = 140, 9  # past one fixed row tile
CUTS = ((0, 1, 2, 70, EVENTS), (3, 128, 129, EVENTS), (EVENTS,))
PAGE_TOKENS = 32

_ROUTE = OneDnnRoute() if OneDnnRoute.available(torch.float32) else AtenRoute()
KERNELS: dict[str, tuple[Kernel, torch.dtype, float]] = {
    "reference-fp64": (ReferenceKernel(), torch.float64, 1e-12),
    "cpu-fp64": (BlockedKernel(AtenRoute()), torch.float64, 1e-12),
    "bitwise-fp32": (BlockedKernel(_ROUTE, bitwise=True), torch.float32, 0.0),
}


class Scorer:
    """One model and kernel, with a row of its own and strangers."""

    def __init__(self, name: str, kernel_name: str) -> None:
        self.kernel, dtype, self.bound = KERNELS[kernel_name]
        config = msgspec.structs.replace(CASES[name], max_seq_len=400)
        self.model: Ranker = random_model(config).cast(dtype)
        self.config = config
        self.layout = KvLayout(
            config.num_layers, config.num_heads, config.qk_dim, config.v_dim, dtype, PAGE_TOKENS
        )
        self.row = random_row(config, EVENTS, CANDIDATES, 2)
        self.want = self(self.row)

    def __call__(self, row: Row, *, cached: int = 0, store: KvStore | None = None) -> np.ndarray:
        with torch.inference_mode():
            return self.model([row_input(row, cached=cached, store=store)], self.kernel)[0].numpy()

    def batch(self, rows: Sequence[Row]) -> list[np.ndarray]:
        with torch.inference_mode():
            return [logits.numpy() for logits in self.model([row_input(row) for row in rows], self.kernel)]

    def check(self, got: np.ndarray, want: np.ndarray) -> None:
        assert got.shape == want.shape
        if not self.bound:
            assert np.array_equal(got, want)
        assert float(np.abs(got - want).max(initial=0)) <= self.bound * max(1.0, float(np.abs(want).max()))

    def stores(self) -> list[KvStore]:
        """A private buffer, and scattered pages out of order."""
        tokens = self.config.prefix_tokens(EVENTS)
        pool = PagePool(self.layout, pages=24)
        pages = np.random.default_rng(0).permutation(24)[: self.layout.pages_for(tokens)].tolist()
        private = PrivateKv(self.layout, 8, limit_tokens=tokens)
        return [private, PagedKv(pool, pages, tokens, clean_tail=True, filled=0)]


def chosen(row: Row, candidates: Sequence[int]) -> Row:
    """The row with some of its candidates."""
    query = row.query_time
    return replace(
        row,
        candidates=[row.candidates[i] for i in candidates],
        query_time=query if isinstance(query, int) else [query[i] for i in candidates],
    )


def shorter(row: Row, events: int) -> Row:
    """The first events, without candidates; a prefix must not read the query time."""
    columns = {name: getattr(row, name)[:events] for name in ("items", "times", "actions")}
    return replace(row, **columns, candidates=[], query_time=0)


@pytest.fixture(scope="module")
def scorer() -> Callable[[str, str], Scorer]:
    made: dict[tuple[str, str], Scorer] = {}

    def make(name: str, kernel_name: str) -> Scorer:
        key = name, kernel_name
        if key not in made:
            made[key] = Scorer(name, kernel_name)
        return made[key]

    return make


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_other_candidates_and_batch_mates_change_nothing(
    name: str, kernel_name: str, scorer: Callable[[str, str], Scorer]
) -> None:
    score = scorer(name, kernel_name)
    for one in (0, 4, CANDIDATES - 1):
        score.check(score(chosen(score.row, [one])), score.want[one : one + 1])
    order = [5, 5, 0, 8, 2]
    score.check(score(chosen(score.row, order)), score.want[order])
    mates = [random_row(score.config, h, m, 10 + h) for h, m in ((0, 2), (150, 5), (1, 0), (31, 20))]
    score.check(score.batch([mates[0], mates[1], score.row, *mates[2:]])[2], score.want)


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_against_kept_keys_change_nothing(
    name: str, kernel_name: str, scorer: Callable[[str, str], Scorer]
) -> None:
    """Of one query time, which every model allows: the first pass leaves K/V, later ones read them."""
    score = scorer(name, kernel_name)
    kept = score.config.prefix_tokens(EVENTS)
    groups = ([0, 1], [2, 3, 4, 5, 6], [7], [8])
    for store in score.stores():
        parts = [
            score(chosen(score.row, group), cached=kept if turn else 0, store=store)
            for turn, group in enumerate(groups)
        ]
        score.check(np.concatenate(parts), score.want)


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].cacheable == "append"])
def test_cuts_of_the_history_change_nothing(
    name: str, kernel_name: str, scorer: Callable[[str, str], Scorer]
) -> None:
    """Also between an item and its action: all but the first piece start one token early."""
    score = scorer(name, kernel_name)
    for cuts in CUTS:
        for store in score.stores():
            cached = 0
            for events in cuts:
                score(shorter(score.row, events), cached=cached, store=store)
                cached = max(score.config.prefix_tokens(events) - (score.config.tokens_per_event - 1), 0)
            kept = score.config.prefix_tokens(EVENTS)
            score.check(score(score.row, cached=kept, store=store), score.want)
            score.check(score(score.row, cached=kept - 1, store=store), score.want)
