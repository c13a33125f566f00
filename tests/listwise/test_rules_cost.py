"""What rules cost: linear in pairs, in what was shown and in picks, and so is their memory."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from rule_cases import pool_of, rules_of

from relaygr.listwise.pool import Shown

SHOWN = 4096


def shown_of(**attributes: Any) -> Shown:
    columns = {name: np.asarray(column, dtype=np.int64) for name, column in attributes.items()}
    return Shown(ids=np.arange(10_000, 10_000 + SHOWN, dtype=np.int64), attributes=columns)


@pytest.mark.parametrize("met", [False, True])
def test_the_check_of_many_pairs_is_one_look_at_each(met: bool) -> None:
    """Every pair for every two items would take 40 s and more here."""
    first = 0 if met else 10**6
    pairs = [[first + at, 2 * 10**6 + at] for at in range(10_000)]
    rules = rules_of({"kind": "pairs", "pairs": pairs})
    pool, shown = pool_of(300), shown_of()
    began = time.process_time()
    assert not rules.violations(pool, np.arange(100, dtype=np.int32), 100, shown, ())
    assert time.process_time() - began < 1


def test_the_check_of_many_values_and_a_long_feed_is_one_look_at_each() -> None:
    values = list(range(9_000))
    kinds: list[dict[str, Any]] = [
        {"kind": "maximum", "values": values, "count": 5000},
        {"kind": "cap", "most": 200},
        {"kind": "cap", "most": 4000, "window": 4100, "values": values},
        {"kind": "minimum", "values": values, "count": 1, "within": 4100, "scope": "feed"},
        {"kind": "slot", "values": values, "positions": values},
    ]
    rules = rules_of(*({**kinds[at % 5], "attribute": "a"} for at in range(15)))
    pool, shown = pool_of(300, a=np.full(300, 8_999)), shown_of(a=np.full(SHOWN, 8_998))
    began = time.process_time()
    assert not rules.violations(pool, np.arange(100, dtype=np.int32), 100, shown, ())
    assert time.process_time() - began < 1


def test_pairs_of_shown_items_and_candidates_take_memory_by_their_number() -> None:
    random = np.random.default_rng(0)
    pool, shown = pool_of(2000), shown_of()
    mixed = random.permutation(np.concatenate([pool.ids, shown.ids]))
    rules = rules_of({"kind": "pairs", "pairs": mixed[:6000].reshape(-1, 2).tolist()})
    tracemalloc.start()
    try:
        walk = rules.open(pool, np.linspace(1, 0, 2000), 10, shown)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert walk.length == 10
    assert peak < 4e6
