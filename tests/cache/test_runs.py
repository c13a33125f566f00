"""The free list of chunks against a set of free ids."""

import random
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.cache.runs import Run, RunAllocator

TOTAL = 24


def stretches(free: set[int]) -> list[Run]:
    groups = groupby(enumerate(sorted(free)), key=lambda pair: pair[1] - pair[0])
    lists = [[chunk for _, chunk in group] for _, group in groups]
    return [Run(chunks[0], len(chunks)) for chunks in lists]


def expected(free: set[int], n: int, after: int | None) -> list[Run] | None:
    """Brute force: every rule read off a set."""
    if n > len(free):
        return None
    left, runs = set(free), []
    if after is not None and n and after in left:
        length = next(k for k in range(1, TOTAL + 1) if after + k not in left)
        runs.append(Run(after, min(n, length)))
        left -= set(range(after, after + runs[-1].chunks))
        n -= runs[-1].chunks
    while n:
        fitting = [run for run in stretches(left) if run.chunks >= n]
        best = min(fitting, key=lambda run: (run.chunks, run.first)) if fitting else None
        chosen = best or max(stretches(left), key=lambda run: (run.chunks, run.first))
        runs.append(Run(chosen.first, min(n, chosen.chunks)))
        left -= set(range(chosen.first, runs[-1].end))
        n -= runs[-1].chunks
    return runs


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_against_a_set(seed: int) -> None:
    rng = random.Random(seed)
    pool, free = RunAllocator(TOTAL), set(range(TOTAL))
    owned: list[list[Run]] = []
    for _ in range(60):
        if owned and rng.random() < 0.45:
            mine = owned.pop(rng.randrange(len(owned)))
            rng.shuffle(mine)
            pool.free(mine)
            free |= {chunk for run in mine for chunk in range(run.first, run.end)}
        else:
            grown = rng.choice(owned) if owned and rng.random() < 0.3 else None
            n, after = rng.randint(0, 9), grown[-1].end if grown else None
            want = expected(free, n, after)
            got = pool.take(n, after)
            assert (None if got is None else list(got)) == want
            for run in got or ():
                chunks = set(range(run.first, run.end))
                assert chunks <= free, "taken twice"
                free -= chunks
            if got:
                owned.append(list(got))
        assert pool.free_count == len(free)
        assert list(pool.free_runs) == stretches(free), "free neighbours are merged"


def test_extends_in_place_then_best_fit_then_several_runs() -> None:
    pool = RunAllocator(20)
    assert pool.take(20) == (Run(0, 20),)
    pool.free([Run(2, 3), Run(8, 2), Run(12, 5)])
    assert pool.take(2, after=2) == (Run(2, 2),)
    assert pool.take(2) == (Run(8, 2),)
    assert pool.take(6) == (Run(12, 5), Run(4, 1))
    assert pool.take(1) is None
    assert pool.take(0) == ()


def test_m14_a_fresh_pool_gives_one_run() -> None:
    for n in (1, 7, 100):
        assert len(RunAllocator(100).take(n) or ()) == 1


@pytest.mark.parametrize(
    "run", [Run(3, 2), Run(5, 3), Run(1, 3), Run(0, 1), Run(-1, 1), Run(7, 2), Run(6, 0)]
)
def test_double_free_is_caught(run: Run) -> None:
    pool = RunAllocator(8)
    pool.take(8)
    pool.free([Run(0, 1), Run(3, 3)])
    with pytest.raises(AssertionError):
        pool.free([run])
    assert pool.free_count == 4


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="total"):
        RunAllocator(0)
    with pytest.raises(ValueError, match="n: -1"):
        RunAllocator(1).take(-1)
