"""The token bucket: its shape, and that no window, wherever it starts, sees more than it may."""

from __future__ import annotations

import math
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.bucket import BucketShape, TokenBucket, bucket_shape


@pytest.mark.parametrize(
    ("rate", "burst_max", "window", "burst", "refill"),
    [(512, 32, 1, 32, 480), (5, 8, 4, 8, 3), (20, 8, 1, 8, 12), (2, 100, 10, 10, 1)],
)
def test_worked_examples(rate: float, burst_max: float, window: float, burst: float, refill: float) -> None:
    assert bucket_shape(rate, burst_max) == BucketShape(window, burst, refill)


def most_in_any(times: list[float], window_s: float) -> int:
    """Admissions in the fullest half-open window; it starts at one of them."""
    return max((bisect_right(times, t + window_s * (1 - 1e-9)) - i for i, t in enumerate(times)), default=0)


@pytest.mark.parametrize(("rate", "burst", "step_s", "most"), [(512, 32, 1e-4, 512), (5, 8, 1e-2, 20)])
def test_r5_a_greedy_caller_gets_the_rate_and_no_more(
    rate: float, burst: float, step_s: float, most: int
) -> None:
    bucket = TokenBucket(rate, burst)
    steps = int(3 * bucket.shape.window_s / step_s)
    taken = [i * step_s for i in range(steps) if bucket.take(i * step_s)]
    assert most - 1 <= most_in_any(taken, bucket.shape.window_s) <= most


ARRIVALS = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 0.01), st.floats(0, 30), st.just(1000.0)), max_size=300
)


@settings(deadline=None)
@given(st.floats(0.05, 2000), st.integers(1, 64), ARRIVALS, st.integers(0, 3))
def test_r5_random_arrivals_bursts_and_refunds(
    rate: float, burst: int, gaps: list[float], every: int
) -> None:
    bucket, now, taken = TokenBucket(rate, burst), 0.0, []
    for i, gap in enumerate(gaps):
        now += gap
        for _ in range(40 if gap == 0 else 1):
            if bucket.take(now):
                if every and i % every == 0:
                    bucket.refund()
                    break
                taken.append(now)
    window = bucket.shape.window_s
    assert most_in_any(taken, window) <= rate * window + 1e-6


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from([0.0, 1.0, 30.0, 500.0])), max_size=100))
def test_r5_a_changing_rate_is_bounded_by_the_highest(steps: list[tuple[float, float]]) -> None:
    bucket, now, taken, highest = TokenBucket(30.0, 8), 0.0, [], 30.0
    for gap, rate in steps:
        now += gap
        while bucket.take(now):
            taken.append(now)
        bucket.set_rate(rate, now)
        highest = max(highest, rate)
    assert most_in_any(taken, 1.0) <= highest + 1e-6


def test_a_rate_of_nothing_admits_nothing_and_none_at_once_when_it_ends() -> None:
    bucket = TokenBucket(0.0, 8)
    assert not bucket.take(100.0)
    bucket.set_rate(12.0 / 0.6, 100.0)
    assert not bucket.take(100.0)
    assert bucket.take(101.0)


def test_a_lower_rate_has_a_smaller_burst_at_once() -> None:
    bucket = TokenBucket(1000.0, 100)
    bucket.set_rate(20.0, 0.0)
    assert [bucket.take(0.0) for _ in range(11)] == [True] * 10 + [False]


def test_without_a_limit_everything_is_admitted() -> None:
    bucket = TokenBucket(math.inf, 2)
    assert all(bucket.take(1.0) for _ in range(100))
    bucket.set_rate(5.0, 1.0)
    assert bucket.take(1.0)


def test_a_clock_that_steps_back_refills_nothing() -> None:
    bucket = TokenBucket(5.0, 8)
    while bucket.take(10.0):
        pass
    assert not bucket.take(0.0)
    assert not bucket.take(10.0)
    assert bucket.take(10.4)


def test_an_empty_take_changes_nothing() -> None:
    bucket = TokenBucket(5.0, 1)
    assert bucket.take(0.0)
    assert not any(bucket.take(i * 1e-4) for i in range(1, 100))
    # (20 - 1) / 4 tokens a second.
    assert not bucket.take(0.210)
    assert bucket.take(0.211)


@pytest.mark.parametrize(("rate", "burst"), [(-1.0, 8), (math.nan, 8), (1.0, 0), (1.0, math.nan)])
def test_impossible_shapes_are_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="rate_per_s"):
        TokenBucket(rate, burst)
    bucket = TokenBucket(1.0, 8)
    with pytest.raises(ValueError, match="rate_per_s"):
        bucket.set_rate(-1.0, 0.0)
