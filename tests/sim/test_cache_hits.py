"""Ratios of hits and their first-touch ceilings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cache_traces import trace_of

from relaygr.core.errors import ConfigError
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.hits import PLAIN_COSTS, Costs, ceiling, hits, split


def test_the_published_example() -> None:
    """One user, lengths 100, 110 and 125: 2 of 3 requests, and all tokens but the last length."""
    top = ceiling(trace_of([(0, 100), (0, 110), (0, 125)]), PLAIN_COSTS)
    assert (top.requests, top.tokens) == (3, 335)
    assert top.request_hit == pytest.approx(2 / 3)
    assert top.token_hit == pytest.approx(1 - 125 / 335)
    assert round(top.token_hit, 3) == 0.627
    # 100 tokens from nothing, 10 behind 100, 15 behind 110.
    t2 = 1 / 4096
    spent = 125 + t2 * (100 * 101 / 2 + 10 * 100 + 10 * 11 / 2 + 15 * 110 + 15 * 16 / 2)
    whole = 335 + t2 * sum(n * (n + 1) / 2 for n in (100, 110, 125))
    assert top.cost_hit == pytest.approx(1 - spent / whole)
    assert top.cost == pytest.approx(whole)


def test_a_high_ratio_needs_many_requests_a_user() -> None:
    """1 - users / requests: 98.5 % takes 67 requests of each."""
    for per_user, reached in ((66, False), (67, True)):
        top = ceiling(trace_of([(user, 10) for user in range(3)] * per_user), PLAIN_COSTS)
        assert top.request_hit == pytest.approx(1 - 1 / per_user)
        assert (top.request_hit >= 0.985) is reached


def test_ceilings_of_growing_histories_go_by_first_lengths_and_growth() -> None:
    trace = generate(TraceSpec(users=300, seed=3))
    top = ceiling(trace, PLAIN_COSTS)
    assert top.request_hit == pytest.approx(1 - trace.users / len(trace))
    # What is computed once: all that the users have in the end.
    assert top.token_hit == pytest.approx(1 - trace.footprint_tokens / int(trace.length.sum()))


def test_what_only_tokens_cost_is_hit_as_tokens_are() -> None:
    trace = trace_of([(0, 50), (1, 900), (0, 60), (1, 901)])
    flat = hits(trace, trace.same, Costs(t2=0.0), np.ones(4, np.bool_))
    assert flat.cost_hit == pytest.approx(flat.token_hit)
    # Pairs make the long one count for more.
    assert hits(trace, trace.same, PLAIN_COSTS, np.ones(4, np.bool_)).cost_hit > flat.cost_hit


def test_first_visits_and_returns_are_told_apart() -> None:
    trace = trace_of([(0, 100), (1, 50), (0, 120), (2, 40), (1, 50), (0, 130)])
    reused = np.array([0, 0, 100, 0, 0, 120])
    found = split(trace, reused, PLAIN_COSTS, 0)
    assert (found.first.requests, found.returning.requests, found.all.requests) == (3, 3, 6)
    assert found.first.cost_hit == found.first.request_hit == 0
    assert found.returning.request_hit == pytest.approx(2 / 3)
    assert found.returning.token_hit == pytest.approx(220 / 300)
    assert found.all.token_hit == pytest.approx(220 / 490)
    assert found.first.cost + found.returning.cost == pytest.approx(found.all.cost)
    late = split(trace, reused, PLAIN_COSTS, 2)
    assert (late.first.requests, late.returning.requests) == (1, 3)


def test_nothing_is_hit_of_nothing() -> None:
    trace = trace_of([(0, 0), (0, 0)])
    found = ceiling(trace, PLAIN_COSTS)
    assert (found.request_hit, found.token_hit, found.cost_hit) == (0, 0, 0)


@pytest.mark.parametrize(
    ("field", "value"), [("t1", -1.0), ("t2", math.nan), ("t_load", math.inf), ("t1", 1e10)]
)
def test_bad_costs(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"costs\.{field}: .* must be in \[0, 1e9\]"):
        Costs(**{field: value})
    with pytest.raises(ConfigError, match="must be positive"):
        Costs(t1=0.0, t2=0.0)
