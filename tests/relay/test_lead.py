"""Quantiles of what was seen lately: leads, lives, candidates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.lead import CandidateCounts, LeadTimes, LifeTimes
from relaygr.relay.quantile import QuantileWindow


@settings(deadline=None)
@given(
    st.floats(0, 1),
    st.integers(1, 40),
    st.lists(st.floats(-1e6, 1e6), max_size=120),
    st.integers(0, 60),
    st.integers(0, 50),
)
def test_the_quantile_is_that_of_the_last_samples(
    share: float, limit: int, samples: list[float], seeded: int, least: int
) -> None:
    window = QuantileWindow(share, -7.0, limit, samples[:seeded], least)
    for sample in samples[seeded:]:
        window.add(sample)
    kept = samples[-limit:]
    assert (len(window), window.ordered()) == (len(kept), sorted(kept))
    if len(kept) < max(least, 1):
        assert window.value == window.at(0.25) == -7.0
    else:
        assert window.at(0.25) == pytest.approx(float(np.quantile(kept, 0.25)), rel=1e-9, abs=1e-6)
        assert window.value == pytest.approx(float(np.quantile(kept, share)), rel=1e-9, abs=1e-6)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit: 0"):
        QuantileWindow(0.5, 0.0, 0)


def test_the_lead_that_all_but_a_tenth_have() -> None:
    leads = LeadTimes(0.10, 80.0)
    for _ in range(19):
        leads.observe(10.0)
    assert leads.low_ms == 80.0
    leads.observe(10.0)
    assert leads.low_ms == 10.0
    # Only the last 1,000 count.
    for lead in range(1000):
        leads.observe(100.0 + lead)
    assert leads.low_ms == pytest.approx(100 + 0.1 * 999)


def test_a_ranking_before_its_signal_has_no_lead() -> None:
    leads = LeadTimes(0.0, 80.0)
    for _ in range(20):
        leads.observe(-5.0)
    assert leads.low_ms == 0.0


def test_life_is_the_p99_and_slack() -> None:
    lives = LifeTimes(300.0, 50.0)
    for i in range(99):
        lives.observe(float(i))
    assert lives.t_life_ms == 300.0
    lives.observe(99.0)
    assert lives.t_life_ms == pytest.approx(0.99 * 99 + 50)


def test_rankings_that_came_too_late_lengthen_life() -> None:
    lives = LifeTimes(300.0, 50.0)
    for _ in range(980):
        lives.observe(100.0)
    assert lives.t_life_ms == 150.0
    for _ in range(20):
        lives.observe(400.0)
    assert lives.t_life_ms == 450.0


def test_candidates_to_expect() -> None:
    counts = CandidateCounts(256)
    assert counts.expected == 256
    counts.observe(100)
    assert counts.expected == 100
    counts.observe(200)
    assert counts.expected == 190
    counts.observe(101)
    # 0.8 of the way from 101 to 200 is 180.2.
    assert counts.expected == 181


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_time_is_refused(value: float) -> None:
    leads, lives = LeadTimes(0.1, 80.0), LifeTimes(300.0, 50.0)
    with pytest.raises(ValueError, match="lead_ms"):
        leads.observe(value)
    with pytest.raises(ValueError, match="needed_ms"):
        lives.observe(value)
    with pytest.raises(ValueError, match="must not be negative"):
        lives.observe(-1.0)
