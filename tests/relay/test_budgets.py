"""Budgets from the machine's own clock, from settings, and what contradicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.config.settings import BudgetConfig
from relaygr.core.errors import ConfigError
from relaygr.relay.budgets import (
    FIXED_BUDGETS,
    auto_budgets,
    auto_chunk_ms,
    check_budgets,
    resolve_budgets,
    tau_ms,
)
from relaygr.relay.latency import Chunks, Coefficients

EXAMPLE = Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=1e-6, t_launch_ms=0.3)
PAGE, LONGEST = 32, 8192


def replace_launch(ms: float) -> Coefficients:
    return Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=1e-6, t_launch_ms=ms)


def test_auto_is_in_units_of_a_full_pass() -> None:
    tau = EXAMPLE.pass_ms(2048, 0, 128)
    assert tau_ms(EXAMPLE) == tau
    found = auto_budgets(EXAMPLE, PAGE, LONGEST)
    assert (found.b_rank_ms, found.guard_ms) == (2 * tau, tau / 16)
    assert (found.lead_default_ms, found.lead_p99_ms) == (2 * tau, 5 * tau)
    assert (found.t_life_ms, found.b_pipe_ms, found.drain_ms) == (8 * tau, 8 * tau, 8 * tau)
    assert found.chunk_ms == 16 * EXAMPLE.t_launch_ms
    cheap, dear = replace_launch(0.01), replace_launch(10.0)
    assert auto_chunk_ms(cheap) == tau_ms(cheap) / 12
    middling = replace_launch(0.2)
    assert auto_chunk_ms(middling) == 16 * 0.2
    assert auto_chunk_ms(dear) == tau_ms(dear) / 2
    check_budgets(found, Chunks(EXAMPLE, found.chunk_ms, PAGE).bound_ms(LONGEST))


def test_an_auto_chunk_is_at_least_one_page_of_the_longest_prefix() -> None:
    steep = Coefficients(t0_ms=0, t1_ms=0, t2_ms=1e-3, t_launch_ms=0)
    found = auto_budgets(steep, PAGE, LONGEST)
    assert found.chunk_ms == steep.chunk_pass_ms(PAGE, LONGEST - PAGE) > auto_chunk_ms(steep)


@given(
    st.builds(
        Coefficients,
        t0_ms=st.floats(1e-3, 100),
        t1_ms=st.floats(1e-6, 1),
        t2_ms=st.floats(0, 1e-4),
        t_launch_ms=st.just(0.0),
    ),
    st.sampled_from([8, 32, 256]),
)
def test_auto_never_contradicts_itself(found: Coefficients, page: int) -> None:
    budgets = auto_budgets(found, page, 4096)
    check_budgets(budgets, Chunks(found, budgets.chunk_ms, page).bound_ms(4096))


def test_named_values_win_over_auto() -> None:
    auto = auto_budgets(EXAMPLE, PAGE, LONGEST)
    assert resolve_budgets(BudgetConfig(), auto) == auto
    config = BudgetConfig(b_rank_ms=40.0, t_life_ms=900.0, rank_wait_cap_ms=7.0, t_life_slack_ms=1.0)
    expected = replace(
        auto, b_rank_ms=40.0, t_life_ms=900.0, rank_wait_cap_ms=7.0, t_life_slack_ms=1.0, drain_ms=900.0
    )
    assert resolve_budgets(config, auto) == expected
    measured = resolve_budgets(BudgetConfig(t_life_ms=0.0), FIXED_BUDGETS)
    assert (measured.t_life_ms, measured.drain_ms) == (0.0, 300.0)
    assert resolve_budgets(BudgetConfig(t_life_ms=900.0, drain_ms=5.0), auto).drain_ms == 5.0


def test_ranking_waits_as_long_as_its_budget_leaves() -> None:
    assert FIXED_BUDGETS.rank_wait_ms(7.7) == pytest.approx(50 - 7.7 - 3)
    assert FIXED_BUDGETS.rank_wait_ms(60.0) == 0
    assert replace(FIXED_BUDGETS, rank_wait_cap_ms=5.0).rank_wait_ms(7.7) == 5.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t_life_ms": 199.0}, "budgets.t_life_ms: 199 must be 0 or at least lead_p99_ms + b_rank_ms = 200"),
        ({"chunk_ms": 50.0}, "budgets.chunk_ms: 50 must be less than b_rank_ms = 50"),
        ({"guard_ms": 50.0}, "budgets.guard_ms: 50 must be less than b_rank_ms = 50"),
        ({"b_pipe_ms": 49.0}, "budgets.b_rank_ms: 50 must be at most b_pipe_ms = 49"),
        ({"lead_default_ms": 151.0}, "budgets.lead_default_ms: 151 must be at most lead_p99_ms = 150"),
    ],
)
def test_contradictions_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_budgets(replace(FIXED_BUDGETS, **change), 4.0)
    assert str(caught.value) == message


def test_the_nearest_allowed_values_pass() -> None:
    for change in ({"t_life_ms": 200.0}, {"t_life_ms": 0.0}, {"chunk_ms": 49.9}, {"b_pipe_ms": 50.0}):
        check_budgets(replace(FIXED_BUDGETS, **change), 4.0)


def test_a_page_slower_than_ranking_may_be_is_refused() -> None:
    check_budgets(FIXED_BUDGETS, 49.9)
    with pytest.raises(ConfigError, match=r"budgets\.b_rank_ms: 50 must be more than the 50 ms"):
        check_budgets(FIXED_BUDGETS, 50.0)
