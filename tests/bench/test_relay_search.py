"""The search on real servers: from any start to the edge, within its tries; what was left out is said."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.bench.edge import Edge, find_edge
from relaygr.bench.relay_point import Point, Spread, Trial
from relaygr.bench.relay_time import Allotment
from relaygr.bench.relay_wire import clock

NOTHING = Spread()


def trial(level: int, good: float, *, requests: int = 1000, seeds: int = 1, planned: int = 1000) -> Trial:
    points = tuple(
        Point(
            seed=seed,
            rate=1.0,
            length=level,
            planned=planned,
            requests=requests,
            good=round(good * requests),
            valid=requests,
            ended=requests < planned,
            seconds=1.0,
            skipped_s=0.0,
            latency=NOTHING,
            queue=NOTHING,
            compute=NOTHING,
            overhead=NOTHING,
            send_lag=NOTHING,
            paths=(),
            signals=(),
            served_mean=1.0,
            events_failed=0,
        )
        for seed in range(seeds)
    )
    return Trial(variant="any", rate=1.0, length=level, planned=seeds, b_rank_ms=0.0, points=points)


def search(edge: int, **limits: object) -> tuple[Edge[Trial], list[int]]:
    tried: list[int] = []

    async def attempt(level: int) -> Trial:
        tried.append(level)
        return trial(level, 1.0 if level <= edge else 0.98)

    asked = {"least": -40, "most": 40, "tries": 99, **limits}
    return asyncio.run(find_edge(attempt, **asked)), tried  # type: ignore[arg-type]


@given(edge=st.integers(-45, 45))
def test_the_edge_is_found_from_anywhere_with_few_tries(edge: int) -> None:
    found, tried = search(edge)
    assert found.level == (min(edge, 40) if edge >= -40 else None)
    assert found.bracketed or edge < -40
    assert len(tried) == len(set(tried)) <= 13


@pytest.mark.parametrize(("leap", "tried"), [(4, [0, 4, 8]), (2, [0, 2, 4]), (1, [0, 1, 3])])
def test_much_room_is_a_leap(leap: int, tried: list[int]) -> None:
    """The budget of these loads is above all of their latencies."""
    levels: list[int] = []

    async def attempt(level: int) -> Trial:
        levels.append(level)
        return msgspec.structs.replace(trial(level, 1.0), b_rank_ms=1.0)

    asyncio.run(find_edge(attempt, -40, 40, 3, leap=leap))
    assert levels == tried


def test_tries_are_bounded_but_not_before_something_passed() -> None:
    found, tried = search(-30, tries=4)
    assert found.level is not None
    assert found.level <= -30
    assert len(tried) <= 8
    assert not found.bracketed
    found, tried = search(30, tries=4)
    assert (len(tried), found.bracketed) == (4, False)


def test_time_ends_a_search() -> None:
    found, tried = search(10, more=lambda passed: False)
    assert (found.level, tried) == (0, [0])
    found, tried = search(-10, more=lambda passed: not passed)
    assert found.level is not None
    assert found.level <= -10


def test_what_is_known_is_not_tried() -> None:
    found, tried = search(2, known=2)
    assert (found.level, found.bracketed, tried) == (2, True, [3])
    found, tried = search(0, known=40)
    assert (found.level, found.bracketed, tried) == (40, True, [])
    found, tried = search(0, known=-1)
    assert (found.level, found.bracketed) == (0, True)


def test_a_failure_from_the_beginning_goes_further() -> None:
    async def attempt(level: int) -> Trial:
        if level <= -6:
            return trial(level, 1.0)
        return trial(level, 0.9, requests=50)

    found = asyncio.run(find_edge(attempt, -40, 40, 20))
    assert found.level == -6
    assert [one.length for one in found.trials][:2] == [0, -2]


@pytest.mark.parametrize(
    ("one", "passes", "far"),
    [
        (trial(0, 0.99), True, False),
        (trial(0, 0.989), False, False),
        (trial(0, 0.995, requests=900), False, False),
        (trial(0, 0.995, requests=300), False, True),
        (trial(0, 0.98, seeds=5), False, False),
        (trial(0, 1.0, seeds=5), True, False),
    ],
)
def test_what_passes(one: Trial, passes: bool, far: bool) -> None:
    assert (one.passes, one.far) == (passes, far)


def test_time_is_shared_by_weight_and_handed_on() -> None:
    time = Allotment(clock() + 100, [("a", 1.0), ("b", 2.0), ("c", 1.0)])
    assert time.share_s("a") == pytest.approx(25, abs=1)
    assert time.share_s("c") == pytest.approx(100, abs=1)
    with pytest.raises(KeyError):
        time.share_s("b")
    assert Allotment(clock() - 1, [("a", 1.0)]).share_s("a") == 0


def noisy(edge: int, slow: float, seed: int, votes: int, tries: int = 24) -> tuple[Edge[Trial], list[int]]:
    """Runs pass up to `edge`, but for a share of them that meets a slow second of the machine."""
    tried: list[int] = []
    draws = random.Random(seed)

    async def attempt(level: int) -> Trial:
        tried.append(level)
        return trial(level, 1.0 if level <= edge and draws.random() >= slow else 0.98)

    return asyncio.run(find_edge(attempt, -40, 40, tries, votes=votes)), tried


def far_off(slow: float, votes: int) -> int:
    """Searches of 300 that end more than one step from the edge."""
    starts = [(number % 9 - 4, number) for number in range(300)]
    levels = [(noisy(edge, slow, seed, votes)[0].level, edge) for edge, seed in starts]
    return sum(level is None or abs(level - edge) > 1 for level, edge in levels)


def test_a_slow_second_does_not_move_the_edge() -> None:
    """One run in five fails for no fault of its load."""
    assert 0 < 2 * far_off(0.2, votes=2) < far_off(0.2, votes=1)


@given(edge=st.integers(-45, 45), votes=st.integers(1, 3))
def test_without_noise_votes_only_confirm(edge: int, votes: int) -> None:
    found, tried = noisy(edge, 0.0, 0, votes, tries=99)
    assert found.level == (min(edge, 40) if edge >= -40 else None)
    assert found.bracketed
    for level, count in Counter(tried).items():
        assert (
            count <= votes
            if abs(level - edge) <= 1 or edge < -40 or edge > 40 or level > edge
            else count == 1
        )
    assert found.runs == tuple(place for place, level in enumerate(tried) if level == found.level)


@given(
    verdicts=st.lists(st.booleans(), min_size=30, max_size=30),
    votes=st.integers(1, 3),
    tries=st.integers(1, 12),
)
def test_what_is_found_has_more_votes_for_it_than_against(
    verdicts: list[bool], votes: int, tries: int
) -> None:
    """Whatever the runs said, in whatever order."""
    tried: list[int] = []

    async def attempt(level: int) -> Trial:
        tried.append(level)
        return trial(level, 1.0 if verdicts[len(tried) - 1] else 0.98)

    found = asyncio.run(find_edge(attempt, -10, 10, tries, votes=votes))
    assert len(tried) <= 2 * tries

    def lead(level: int) -> int:
        told = list(zip(tried, verdicts, strict=False))
        return sum(good and at >= level for at, good in told) - sum(
            not good and at <= level for at, good in told
        )

    if found.level is not None:
        assert lead(found.level) > 0
        assert found.level in tried or found.level < max(
            at for at, good in zip(tried, verdicts, strict=False) if good
        )
        assert not found.bracketed or found.level == 10 or lead(found.level + 1) <= -votes
        assert not found.bracketed or lead(found.level) >= votes
    else:
        assert all(lead(level) <= 0 for level in range(-10, 11))


def test_time_that_ends_leaves_a_lower_bound() -> None:
    found, tried = search(5, votes=2, more=lambda passed: not passed)
    assert (found.level, found.bracketed, tried) == (0, False, [0])
    # Nothing passed, but something is known.
    found, tried = search(-9, votes=2, known=-12, more=lambda passed: False)
    assert (found.level, found.bracketed, found.runs, tried) == (-12, False, (), [0])


def test_one_failure_sends_no_search_down() -> None:
    verdicts = iter([False, True, True])
    tried: list[int] = []

    async def attempt(level: int) -> Trial:
        tried.append(level)
        return trial(level, 1.0 if next(verdicts) else 0.98)

    found = asyncio.run(find_edge(attempt, -40, 40, 3, votes=2))
    assert (tried, found.level) == ([0, 0, 0], 0)


def test_a_pass_with_room_needs_no_second() -> None:
    tried: list[int] = []

    async def attempt(level: int) -> Trial:
        tried.append(level)
        one = trial(level, 1.0 if level <= 0 else 0.98)
        return msgspec.structs.replace(one, b_rank_ms=1.0)

    found = asyncio.run(find_edge(attempt, -40, 40, 20, votes=2))
    assert (found.level, found.bracketed) == (0, True)
    assert tried.count(0) == 1
    assert tried.count(1) == 2
