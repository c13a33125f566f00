"""The search on real servers: from any start to the edge, within its tries; what was left out is said."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.bench.relay_point import Point, Spread, Trial
from relaygr.bench.relay_search import Edge, find_edge
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


def search(edge: int, **limits: object) -> tuple[Edge, list[int]]:
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
