"""Timing: variants take turns, rare ones in evenly spread rounds, percentiles by nearest rank."""

from __future__ import annotations

import pytest

from relaygr.bench.timing import Timing, Variant, round_robin


def test_variants_take_turns() -> None:
    order: list[str] = []
    variants = [
        Variant("a", lambda: order.append("a")),
        Variant("b", lambda: order.append("b"), runs=2),
    ]
    often, rare = round_robin(variants, rounds=5)
    assert "".join(order) == "abaaaba"
    assert (often.name, len(often.times_ms), len(rare.times_ms)) == ("a", 5, 2)


@pytest.mark.parametrize(("rounds", "runs"), [(9, 1), (9, 2), (9, 4), (9, 9), (1, 1), (3, 2)])
def test_runs_are_exact(rounds: int, runs: int) -> None:
    (timing,) = round_robin([Variant("a", lambda: None, runs)], rounds)
    assert len(timing.times_ms) == runs


def test_a_limit_still_gives_the_least_rounds() -> None:
    (timing,) = round_robin([Variant("a", lambda: None)], rounds=100, limit_s=0.0, least=3)
    assert len(timing.times_ms) == 3


def test_percentiles() -> None:
    timing = Timing("a", tuple(float(i) for i in range(100, 0, -1)))
    assert (timing.median_ms, timing.min_ms) == (50.5, 1.0)
    assert [timing.percentile_ms(p) for p in (0, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert Timing("a", (7.0,)).percentile_ms(99) == 7.0
