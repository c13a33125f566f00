"""One selection round at W = 256 on 1.5 M semantic ids within 15 ms of one core."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from select_speed import FIRST, SIZE, SIZES, big_index, median_ms, widest_parents

from relaygr.generation.catalogue.tokens import stacked
from relaygr.generation.columns import HeadPlan
from relaygr.generation.normalise import Normalization
from relaygr.generation.prepare import prepare
from relaygr.generation.select import select


@pytest.mark.slow
def test_a_round_of_256_beams_takes_at_most_15_ms() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        index = big_index()
        heads = HeadPlan(stacked(SIZES, FIRST).resolve(SIZES), FIRST + 3 * SIZE)
        parents = widest_parents(index, 2, 256)
        pool = prepare(index, 2, parents, heads, Normalization.LEVEL)
        assert len(pool.nodes) > 150_000
        logits = torch.randn(256, SIZE, generator=torch.Generator().manual_seed(0)) * 3
        scores = -np.sort(np.random.default_rng(2).random(256) * 10)
        least, _ = median_ms(lambda: select(pool, scores, logits, 256, Normalization.LEVEL))
        assert least <= 15.0
    finally:
        torch.set_num_threads(threads)
