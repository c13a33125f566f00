"""One selection round on 1.5 M semantic ids, timed: `PYTHONPATH=src python tests/generation/select_speed.py`.

Times are CPU times of the one thread, so that whatever else runs on the machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.filters import Wanted, make_filter
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import stacked
from relaygr.generation.columns import HeadPlan
from relaygr.generation.normalise import Normalization
from relaygr.generation.prepare import prepare
from relaygr.generation.select import select

SIZE = 8192
SIZES = (SIZE, SIZE, SIZE)
FIRST = 100


def big_index(n_sids: int = 1_500_000) -> CatalogueIndex:
    """Three levels of 8,192 codes with skewed out-degrees."""
    rng = np.random.default_rng(0)
    rows = n_sids * 5 // 4

    def skewed(power: float) -> np.ndarray:
        weights = (np.arange(SIZE) + 20.0) ** -power
        return np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(rows)).clip(0, SIZE - 1)

    first = skewed(0.75)
    second = (skewed(0.75) * 2_654_435_761 + first * 40_503) % SIZE
    third = (skewed(0.3) + second * 31) % SIZE
    codes = np.unique(np.stack([first, second, third], axis=1).astype(np.int64), axis=0)
    codes = rng.permutation(codes)[:n_sids]
    return build_index(Rows(item_ids=np.arange(len(codes)), codes=codes), SIZES).index


def median_ms(work: Callable[[], object], repeats: int = 21) -> tuple[float, float]:
    """Least and median time of some runs, after one that does not count."""
    work()
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        times.append((time.thread_time() - began) * 1e3)
    return min(times), sorted(times)[repeats // 2]


def widest_parents(index: CatalogueIndex, level: int, width: int) -> np.ndarray:
    """The nodes above `level` with the most children, in an order that has nothing to do with it."""
    degrees = np.diff(index.ptr[level - 1])
    return np.random.default_rng(1).permutation(np.argsort(-degrees, kind="stable")[:width])


def main() -> None:
    torch.set_num_threads(1)
    index = big_index()
    heads = HeadPlan(stacked(SIZES, FIRST).resolve(SIZES), FIRST + 3 * SIZE)
    items = make_filter(index, Wanted(deny=index.items[::750].tolist()))
    generator = torch.Generator().manual_seed(0)
    print(f"{index.n_sids} semantic ids, nodes {[index.nodes(level) for level in (1, 2, 3)]}")
    print(
        "width level normalization  children columns | select least, median ms | prepare | with 2,000 denied"
    )
    for width in (256, 512):
        for level in (2, 3):
            parents = widest_parents(index, level, width)
            scores = -np.sort(np.random.default_rng(2).random(width) * 10)
            for normalization in Normalization:
                pool = prepare(index, level, parents, heads, normalization)
                logits = torch.randn(width, pool.head.width, generator=generator) * 3
                chosen = median_ms(lambda: select(pool, scores, logits, width, normalization))  # noqa: B023
                made = median_ms(lambda: prepare(index, level, parents, heads, normalization))  # noqa: B023
                denied = median_ms(lambda: prepare(index, level, parents, heads, normalization, items))  # noqa: B023
                print(
                    f"{width:5} {level:5} {normalization:13} {len(pool.nodes):9} {pool.head.width:7} |"
                    f" {chosen[0]:5.1f} {chosen[1]:5.1f} | {made[0]:5.1f} {made[1]:5.1f} |"
                    f" {denied[0]:5.1f} {denied[1]:5.1f}"
                )


if __name__ == "__main__":
    main()
