"""The load meter: rates and service times of the last seconds, and how it starts, idles and forgets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.loads import Kind, LoadMeter


@pytest.mark.parametrize("start", [0.0, 1234.567, -3.2])
def test_a_steady_rate_is_found_at_once_and_stays(start: float) -> None:
    meter = LoadMeter(5.0)
    for i in range(4000):
        now = start + i * 0.01
        meter.arrive(Kind.RANK, now)
        if i > 200:
            assert meter.rate_per_s(Kind.RANK, now) == pytest.approx(100, rel=0.26 if i < 400 else 0.12)
    assert meter.rate_per_s(Kind.PRE, start + 40) == 0


def test_random_arrivals_are_not_counted_twice_or_lost() -> None:
    draw, meter, now, found = random.Random(5), LoadMeter(2.0), 0.0, []
    for _ in range(20_000):
        now += draw.expovariate(200.0)
        meter.arrive(Kind.PRE, now)
        found.append(meter.rate_per_s(Kind.PRE, now))
    assert sum(found) / len(found) == pytest.approx(200, rel=0.02)


def test_the_first_request_is_one_in_a_slice() -> None:
    meter = LoadMeter(5.0)
    meter.arrive(Kind.RANK, 100.0)
    assert meter.rate_per_s(Kind.RANK, 100.0) == 1 / 0.5
    assert meter.rate_per_s(Kind.RANK, 101.0) == 1


def test_a_pause_is_a_rate_of_nothing() -> None:
    meter = LoadMeter(5.0)
    for i in range(100):
        meter.arrive(Kind.RANK, i * 0.01)
    assert meter.rate_per_s(Kind.RANK, 1.0) == 100
    assert meter.rate_per_s(Kind.RANK, 4.0) == 25
    assert meter.rate_per_s(Kind.RANK, 6.4) == 0
    assert meter.rate_per_s(Kind.RANK, 1e6) == 0
    assert len(meter._slices) == 1


def test_service_time_is_of_the_window_and_outlasts_it() -> None:
    meter = LoadMeter(5.0)
    assert meter.mean_ms(Kind.PRE) == 0
    meter.serve(Kind.PRE, 40.0, 0.0)
    meter.serve(Kind.PRE, 60.0, 1.0)
    assert meter.mean_ms(Kind.PRE) == 50
    meter.arrive(Kind.RANK, 100.0)
    assert meter.mean_ms(Kind.PRE) == 50
    meter.serve(Kind.PRE, 10.0, 100.0)
    assert meter.mean_ms(Kind.PRE) == 10
    assert meter.mean_ms(Kind.RANK) == 0


def test_a_batch_and_a_pre_inference_in_parts() -> None:
    meter = LoadMeter()
    meter.serve(Kind.RANK, 30.0, 0.0, requests=3)
    assert meter.mean_ms(Kind.RANK) == 10
    for _ in range(3):
        meter.serve(Kind.PRE, 4.0, 0.0, requests=0)
    assert meter.mean_ms(Kind.PRE) == 0
    meter.serve(Kind.PRE, 4.0, 0.0)
    assert meter.mean_ms(Kind.PRE) == 16


def test_the_share_of_the_example() -> None:
    """40 rankings a second of 10 ms take a fifth of two slots."""
    meter = LoadMeter(5.0)
    for i in range(400):
        meter.arrive(Kind.RANK, i / 40)
        meter.serve(Kind.RANK, 10.0, i / 40)
    assert meter.share(Kind.RANK, 2, 10.0) == pytest.approx(0.2)


def test_a_clock_that_steps_back() -> None:
    meter = LoadMeter(5.0)
    for _ in range(10):
        meter.arrive(Kind.RANK, 50.0)
    meter.arrive(Kind.RANK, 0.0)
    assert meter.rate_per_s(Kind.RANK, 0.0) == 11 / 0.5


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 20)), max_size=100))
def test_memory_is_bounded_and_nothing_older_than_the_window_counts(steps: list[tuple[float, int]]) -> None:
    meter, now = LoadMeter(5.0), 0.0
    times: list[float] = []
    for gap, arrivals in steps:
        now += gap
        for _ in range(arrivals):
            meter.arrive(Kind.RANK, now)
            times.append(now)
        rate = meter.rate_per_s(Kind.RANK, now)
        assert len(meter._slices) <= 11
        kept = sum(now - t < 5.5 for t in times)
        assert rate * 0.5 <= kept + 1e-6
        assert rate * 5.5 >= sum(now - t <= 5.0 for t in times) - 1e-6


@pytest.mark.parametrize(("window", "slices"), [(0.0, 10), (-1.0, 10), (float("nan"), 10), (5.0, 0)])
def test_impossible_windows(window: float, slices: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        LoadMeter(window, slices)


@pytest.mark.parametrize(("ms", "requests"), [(-1.0, 1), (float("nan"), 1), (1.0, -1)])
def test_impossible_services(ms: float, requests: int) -> None:
    meter = LoadMeter()
    with pytest.raises(ValueError, match="must be at least 0"):
        meter.serve(Kind.RANK, ms, 0.0, requests)
    assert meter.mean_ms(Kind.RANK) == 0
