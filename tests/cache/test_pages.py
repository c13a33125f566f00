"""The page allocator against a set of free ids."""

import random
import time

import pytest

from relaygr.cache.pages import PageAllocator


def expected(free: list[bool], n: int, after: int | None) -> tuple[int, ...] | None:
    total = len(free)
    if n > sum(free):
        return None
    starts = [] if after is None else [after + 1]
    for start in [*starts, *range(total)]:
        if start + n <= total and all(free[start : start + n]):
            return tuple(range(start, start + n))
    return tuple(page for page in range(total) if free[page])[:n]


@pytest.mark.parametrize("seed", range(6))
def test_against_flags(seed: int) -> None:
    rng = random.Random(seed)
    total = rng.choice([1, 2, 7, 40, 64])
    pages, free, owned = PageAllocator(total), [True] * total, []
    generations = [0] * total
    for _ in range(600):
        if owned and rng.random() < 0.5:
            mine = owned.pop(rng.randrange(len(owned)))
            part = rng.randint(0, len(mine))
            rng.shuffle(mine)
            for page in mine[:part]:
                free[page] = True
                generations[page] += 1
            pages.free(mine[:part])
            if mine[part:]:
                owned.append(mine[part:])
        else:
            n = rng.randint(0, max(1, total // 3))
            after = rng.choice([None, *range(total)])
            want = expected(free, n, after) if n else ()
            got = pages.take(n, after)
            assert got == want
            for page in got or ():
                free[page] = False
            if got:
                owned.append(list(got))
        assert pages.free_count == sum(free)
        assert [pages.is_free(page) for page in range(total)] == free
        assert [pages.generation(page) for page in range(total)] == generations


def test_prefers_the_neighbour_then_a_run_then_scattered_ids() -> None:
    pages = PageAllocator(10)
    assert pages.take(3) == (0, 1, 2)
    assert pages.take(2, after=5) == (6, 7)
    assert pages.take(3, after=2) == (3, 4, 5)
    pages.free((1, 4, 6, 7))
    assert pages.take(2, after=0) == (6, 7)
    assert pages.take(4, after=0) == (1, 4, 8, 9)
    assert pages.take(1) is None
    assert pages.take(0) == ()


@pytest.mark.parametrize("ids", [(0,), (1, 2), (3, 3), (5, 3, 5), (-1,)])
def test_double_free_is_caught(ids: tuple[int, ...]) -> None:
    pages = PageAllocator(8)
    pages.take(8)
    pages.free((0, 2))
    with pytest.raises(AssertionError):
        pages.free(ids)
    assert pages.free_count == 2


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="total"):
        PageAllocator(0)
    with pytest.raises(ValueError, match="n: -1"):
        PageAllocator(1).take(-1)


def test_fast_when_large_and_fragmented() -> None:
    rng = random.Random(1)
    pages, owned = PageAllocator(102_400), []
    while (taken := pages.take(rng.randint(1, 256))) is not None:
        owned.append(taken)
    for _ in range(len(owned) // 2):
        pages.free(owned.pop(rng.randrange(len(owned))))
    steps = []
    for _ in range(500):
        start = time.perf_counter()
        taken = pages.take(rng.randint(1, 256))
        pages.free(owned.pop(rng.randrange(len(owned))))
        steps.append(time.perf_counter() - start)
        assert taken is not None
        owned.append(taken)
    assert sorted(steps)[len(steps) // 2] < 500e-6  # ~25 us on an idle core; loose for a shared machine
