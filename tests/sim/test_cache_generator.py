"""Made-up traces: their law, their seed, and what each knob does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from relaygr.core.errors import ConfigError
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.hits import PLAIN_COSTS, ceiling
from relaygr.sim.cache.trace import Trace, windowed

SMALL = TraceSpec(users=400)


def columns(trace: Trace) -> list[list[int]]:
    return [column.tolist() for column in (trace.time_ms, trace.user, trace.length, trace.same)]


def test_the_published_day() -> None:
    """Another order of draws than the published one: sizes agree to 2.5 %, ceilings to half a point."""
    trace = generate(TraceSpec())
    assert len(trace) == pytest.approx(354_292, rel=0.025)
    assert trace.footprint_tokens == pytest.approx(30.4e6, rel=0.025)
    late = ceiling(trace, PLAIN_COSTS, trace.warmup)
    assert ceiling(trace, PLAIN_COSTS).request_hit == pytest.approx(0.957, abs=0.005)
    assert late.request_hit == pytest.approx(0.977, abs=0.005)
    assert late.cost_hit == pytest.approx(0.976, abs=0.005)


def test_the_published_day_with_users_who_come_once() -> None:
    plain, scan = generate(TraceSpec()), generate(TraceSpec(scan=0.3))
    assert len(scan) == int(1.3 * len(plain))
    assert len(scan) == pytest.approx(460_579, rel=0.025)
    assert scan.footprint_tokens == pytest.approx(215e6, rel=0.025)
    assert scan.base_tokens == plain.footprint_tokens == plain.base_tokens
    late = ceiling(scan, PLAIN_COSTS, scan.warmup)
    assert late.request_hit == pytest.approx(0.751, abs=0.005)
    assert late.cost_hit == pytest.approx(0.788, abs=0.005)
    # The same requests, with others between them.
    known = scan.user < plain.users
    assert np.array_equal(scan.length[known], plain.length)
    assert np.array_equal(scan.time_ms[known], plain.time_ms)
    once = scan.user[~known]
    assert len(np.unique(once)) == len(once)
    assert scan.length[~known].mean() == pytest.approx(plain.length[plain.first].mean(), rel=0.1)


def test_a_seed_gives_the_same_requests_again_and_another_gives_others() -> None:
    assert columns(generate(SMALL)) == columns(generate(SMALL))
    assert columns(generate(SMALL)) != columns(generate(replace(SMALL, seed=1)))


def test_the_law_of_sessions() -> None:
    trace = generate(TraceSpec(users=5000, rate_sigma=0.5))
    order = np.lexsort((trace.time_ms, trace.user))
    gaps = np.diff(trace.time_ms[order])[trace.user[order][1:] == trace.user[order][:-1]] / 1000
    # Sessions of a user are hours apart, requests of one about a minute.
    inside = gaps[gaps < 900]
    assert inside.mean() == pytest.approx(65, rel=0.05)
    sessions = trace.users + int(np.count_nonzero(gaps >= 900))
    assert sessions == pytest.approx(15_000, rel=0.08)
    assert len(trace) / sessions == pytest.approx(6, rel=0.08)
    assert 0 <= trace.time_ms[0] <= trace.time_ms[-1] < 86_400_000


def test_histories_grow_and_stop_at_the_cap() -> None:
    trace = generate(TraceSpec(users=2000, first_length=6000))
    growth = (trace.length - trace.same)[~trace.first]
    below = trace.length[~trace.first] < 8192
    assert (growth[below].min(), growth[below].max()) == (4, 19)
    assert trace.length.max() == 8192
    assert growth[~below].min() == 0
    assert trace.length[trace.first].min() >= 1


def test_the_median_of_first_lengths() -> None:
    trace = generate(TraceSpec(users=5000))
    logs = np.log(trace.length[trace.first])
    assert math.exp(float(np.median(logs))) == pytest.approx(1200, rel=0.05)
    assert logs.std() == pytest.approx(0.9, rel=0.1)


def test_bursts_move_requests_and_keep_them() -> None:
    plain = generate(replace(SMALL, gap_s=1e-3))
    burst = generate(replace(SMALL, gap_s=1e-3, burst_factor=5.0, burst_share=0.1))
    assert len(burst) == len(plain)
    inside = (burst.time_ms % 3_600_000) < 360_000
    assert inside.mean() == pytest.approx(0.5, abs=0.03)
    assert ((plain.time_ms % 3_600_000) < 360_000).mean() == pytest.approx(0.1, abs=0.03)


def test_churn_replaces_users_by_new_ones() -> None:
    busy = replace(SMALL, sessions_per_day=40.0, rate_sigma=0.0, session_requests=1.0)
    plain, churn = generate(busy), generate(replace(busy, churn=0.5))
    assert len(churn) == len(plain)
    assert churn.users == pytest.approx(1.5 * plain.users, rel=0.1)
    lost = ceiling(plain, PLAIN_COSTS).request_hit - ceiling(churn, PLAIN_COSTS).request_hit
    assert lost == pytest.approx((churn.users - plain.users) / len(plain))


def test_edits_leave_what_stands_before_them() -> None:
    plain, edits = generate(SMALL), generate(replace(SMALL, edits=0.25))
    assert np.array_equal(plain.length, edits.length)
    changed = edits.same != plain.same
    assert changed[plain.first].sum() == 0
    assert changed[~plain.first].mean() == pytest.approx(0.25, abs=0.03)
    shares = edits.same[changed] / plain.same[changed]
    assert shares.max() < 1
    assert shares.mean() == pytest.approx(0.5, abs=0.05)


def test_a_window_that_slides_starts_anew() -> None:
    trace = generate(TraceSpec(users=400, first_length=1000, max_length=1000, slide=0.25))
    returns = ~trace.first
    moved = returns & (trace.same == 0)
    assert moved.any()
    # A move drops whole strides of 250, and leaves room for as much.
    assert trace.length[moved].min() > 750
    assert trace.length.max() <= 1000
    growth = (trace.length - trace.same)[returns & ~moved]
    assert (growth.min(), growth.max()) == (4, 19)


def test_zipf_gives_a_few_users_most_of_the_requests() -> None:
    trace = generate(replace(SMALL, zipf=1.0))
    counts = np.sort(np.bincount(trace.user))[::-1]
    assert counts[:40].sum() > 0.6 * len(trace)
    assert len(trace) == pytest.approx(7200, rel=0.15)


@given(
    n=st.integers(1, 40), high=st.integers(1, 60), limit=st.integers(1, 100), stride=st.integers(0, 30),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_windows_against_the_histories_themselves(
    n: int, high: int, limit: int, stride: int, seed: int
) -> None:
    stride = min(stride, limit)
    new = np.random.default_rng(seed).integers(1, high + 1, n)
    events = np.cumsum(new)
    length, same = windowed(events, new, limit, stride)
    before: list[int] = []
    for at, total in enumerate(events.tolist()):
        start = 0
        while stride and total - start > limit:
            start += stride
        window = list(range(start, total))[:limit]
        common = 0
        while common < min(len(before), len(window)) and before[common] == window[common]:
            common += 1
        assert (length[at], same[at]) == (len(window), common)
        before = window


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("users", 0),
        ("hours", 0.0),
        ("hours", math.nan),
        ("sessions_per_day", -1.0),
        ("rate_sigma", 6.0),
        ("zipf", -0.1),
        ("session_requests", 0.5),
        ("gap_s", 0.0),
        ("first_length", 0.0),
        ("max_length", 0),
        ("growth", (5, 4)),
        ("scan", math.inf),
        ("burst_factor", 0.5),
        ("burst_factor", 11.0),
        ("churn", 1.1),
        ("edits", -0.1),
        ("slide", 2.0),
        ("seed", -1),
        ("users", 10_000_000),
    ],
)
def test_bad_settings(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"trace\.\w+: .+ must be "):
        TraceSpec(**{field: value})  # type: ignore[arg-type]


def test_nobody_comes() -> None:
    with pytest.raises(ConfigError, match=r"trace\.users: 1: none of them has a session in 0\.001 hours"):
        generate(TraceSpec(users=1, hours=0.001, burst_period_s=1.0))
