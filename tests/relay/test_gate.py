"""The gate: memory, rate and load in every window, and refusals that change nothing."""

from __future__ import annotations

import math
import random
from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.config.relay import TriggerConfig
from relaygr.relay.gate import Gate, instances_needed, q_load, q_rate
from relaygr.relay.holds import HoldBook
from relaygr.relay.trigger import Reason

MIB, GIB = 1 << 20, 1 << 30


def gate(bound: int = 16 * GIB, slots: int = 2, t_life_s: float = 0.3, **config: object) -> Gate[int]:
    return Gate(TriggerConfig(**{"u_max": 0.7, **config}), HoldBook(bound, t_life_s), slots)  # type: ignore[arg-type]


def test_rates_of_the_examples() -> None:
    assert q_rate(16 * GIB, 32 * MIB, 0.3) == pytest.approx(1706.7, abs=0.05)
    assert q_rate(16 * GIB, 256 * MIB, 1.0) == 64
    assert q_load(0.7, 2, 40, 10, 50) == pytest.approx(20)
    assert q_load(0.7, 16, 200, 10, 50) == pytest.approx(184)


def test_what_is_unknown_bounds_nothing() -> None:
    assert q_rate(GIB, 0.0, 0.3) == q_rate(GIB, MIB, 0.0) == math.inf
    assert q_rate(GIB, 0.0, 0.3, 7.0) == q_rate(GIB, MIB, 0.1, 7.0) == 7.0
    assert q_load(0.7, 2, 40, 10, 0) == math.inf
    assert q_load(0.7, 2, 140, 10, 0) == q_load(0.7, 2, 1000, 10, 50) == 0
    # Not one fits.
    assert q_rate(GIB, 2 * GIB, 0.3) == 0


def test_instances_of_the_example() -> None:
    assert instances_needed(60, 1706.7, q_load(0.7, 2, 40, 10, 50)) == 3
    assert instances_needed(60.1, 64, 20) == 4
    assert instances_needed(0.1, 64, 184) == 1
    assert instances_needed(0, 64, 0) == 0
    # 3 / 0.1 is a little more than 30.
    assert instances_needed(3, 0.1, 1.0) == 30
    with pytest.raises(ValueError, match="60 requests a second"):
        instances_needed(60, 64, 0)


def test_the_513th_prefix_of_the_example_is_over_the_footprint() -> None:
    found = gate()
    assert {found.admit(key, 32 * MIB, 0.0) for key in range(512)} == {Reason.ADMITTED}
    assert found.admit(512, 32 * MIB, 0.0) is Reason.FOOTPRINT


@pytest.mark.parametrize(
    ("slots", "rank_rate", "t_life", "nbytes", "q", "reason"),
    [(2, 40, 0.3, 32 * MIB, 20, Reason.LOAD), (16, 200, 1.0, 256 * MIB, 64, Reason.RATE)],
)
def test_an_empty_bucket_names_the_smaller_rate(
    slots: int, rank_rate: float, t_life: float, nbytes: int, q: float, reason: Reason
) -> None:
    found = gate(slots=slots)
    found.rates(50, rank_rate, 10, t_life, nbytes, 0.0)
    assert min(found.q_rate_per_s, found.q_load_per_s) == pytest.approx(q)
    burst = 8
    assert [found.admit(key, 1, 0.0) for key in range(burst + 1)] == [Reason.ADMITTED] * burst + [reason]


def test_a_measured_rate_replaces_the_one_before() -> None:
    found = gate()
    assert (found.q_rate_per_s, found.q_load_per_s) == (math.inf, math.inf)
    found.rates(50, 1000, 10, 0.3, 32 * MIB, 0.0)
    assert found.q_load_per_s == 0
    assert found.admit(1, 1, 0.0) is Reason.LOAD
    found.rates(50, 0, 10, 0.3, 32 * MIB, 0.0)
    assert found.admit(1, 1, 1.0) is Reason.ADMITTED


def test_the_rate_follows_a_lower_bound_at_once() -> None:
    holds: HoldBook[int] = HoldBook(16 * GIB, 1.0)
    found = Gate(TriggerConfig(u_max=0.7), holds, 2)
    holds.reserve(-1, 9 * GIB, 0.0)
    holds.propose(8 * GIB)
    found.rates(1, 0, 1, 1.0, 256 * MIB, 0.0)
    assert found.q_rate_per_s == 32


def test_admit_all_asks_for_memory_and_rate_but_not_for_load() -> None:
    found = gate(64 * MIB, admit_all=True, pre_rate_per_s=30.0)
    found.rates(50, 1000, 10, 0.3, MIB, 0.0)
    assert (found.q_rate_per_s, found.q_load_per_s) == (30.0, math.inf)
    assert [found.admit(key, MIB, 0.0) for key in range(9)] == [Reason.ADMITTED] * 8 + [Reason.RATE]
    assert found.admit(9, 57 * MIB, 0.0) is Reason.FOOTPRINT


def test_a_prefix_that_was_there_costs_no_token() -> None:
    found = gate()
    found.rates(50, 40, 10, 0.3, 32 * MIB, 0.0)
    for key in range(100):
        assert found.admit(key, 1, 0.0) is Reason.ADMITTED
        found.refund()
    assert [found.admit(key, 1, 0.0) for key in range(9)] == [Reason.ADMITTED] * 8 + [Reason.LOAD]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.floats(0, 0.4)), max_size=80),
    st.booleans(),
)
def test_r9_a_refusal_leaves_bytes_claims_and_tokens_as_they_were(
    signals: list[tuple[int, int, float]], loaded: bool
) -> None:
    holds: HoldBook[int] = HoldBook(100, 1e9)
    found, now = Gate(TriggerConfig(pre_burst=4, u_max=0.7), holds, 2), 0.0
    # 25 fit in a life; ranking leaves time for 20 a second, or for 28.
    found.rates(50, 40 if loaded else 0, 10, 1.0, 4, now)
    for key, nbytes, gap in signals:
        now += gap
        assert found.check(key, nbytes, now) is found.check(key, nbytes, now)
        before = (holds.by_state(), holds.claims(key), found._bucket._level)
        reason = found.admit(key, nbytes, now)
        after = (holds.by_state(), holds.claims(key), found._bucket._level)
        assert reason in (Reason.ADMITTED, Reason.FOOTPRINT, Reason.LOAD if loaded else Reason.RATE)
        if reason is Reason.ADMITTED:
            assert after[1:] == (before[1] + 1, before[2] - 1)
        else:
            assert after == before


def test_a_prefix_of_which_most_is_there_takes_a_part_of_a_token_of_load() -> None:
    found = gate(slots=2)
    found.rates(50, 40, 10, 0.3, 32 * MIB, 0.0)  # load is the tighter bound
    admitted = [found.admit(key, 1, 0.0, work_ms=5.0) for key in range(81)]
    assert admitted == [Reason.ADMITTED] * 80 + [Reason.LOAD]
    found.refund()
    assert found.admit(99, 1, 0.0, work_ms=5.0) is Reason.ADMITTED
    memory = gate(slots=16)
    memory.rates(50, 200, 10, 1.0, 256 * MIB, 0.0)  # memory is: each takes as much as any other
    assert [memory.admit(key, 1, 0.0, work_ms=5.0) for key in range(9)] == [Reason.ADMITTED] * 8 + [
        Reason.RATE
    ]


def arrivals(pattern: str, seed: int, seconds: float) -> list[float]:
    """Poisson at ten times what is admitted, or fifty at once now and then."""
    draw = random.Random(seed)
    times, now = [], 0.0
    while now < seconds:
        now += draw.expovariate(200.0) if pattern == "random" else draw.uniform(0.1, 3.0)
        times += [now] * (1 if pattern == "random" else 50)
    return times


@pytest.mark.parametrize("pattern", ["random", "bursts"])
@pytest.mark.parametrize(("u_max", "slots"), [(0.7, 2), (0.5, 1), (0.45, 1)])
def test_r5_utilisation_in_every_window(pattern: str, u_max: float, slots: int) -> None:
    """40 rankings a second of 10 ms, and pre-inferences of 50 ms."""
    found = gate(slots=slots, u_max=u_max)
    found.rates(50, 40, 10, 0.3, 32 * MIB, 0.0)
    q = found.q_load_per_s
    window = max(1.0, 20 / q)
    admitted = [
        now
        for key, now in enumerate(arrivals(pattern, 7, 40.0))
        if found.admit(key, 1, now) is Reason.ADMITTED
    ]
    # Not so few that the bound says nothing.
    assert len(admitted) > 0.5 * q * 40 * (1 if pattern == "random" else 0.5)
    for start in admitted:
        within = bisect_left(admitted, start + window) - bisect_left(admitted, start)
        busy_ms = within * 50 + 40 * window * 10
        assert busy_ms <= u_max * slots * window * 1000 * (1 + 1e-9)


@pytest.mark.parametrize("pattern", ["random", "bursts"])
def test_r5_little_s_law_in_every_window(pattern: str) -> None:
    """64 prefixes a second, each held for a second, fit: memory refuses none of those the rate admits."""
    holds: HoldBook[int] = HoldBook(16 * GIB, 1.0)
    found = Gate(TriggerConfig(u_max=0.7), holds, 16)
    found.rates(50, 200, 10, 1.0, 256 * MIB, 0.0)
    admitted: list[float] = []
    for key, now in enumerate(arrivals(pattern, 3, 20.0)):
        holds.expire(now)
        reason = found.admit(key, 256 * MIB, now)
        assert reason in (Reason.ADMITTED, Reason.RATE)
        assert holds.live_bytes <= holds.bound_bytes
        if reason is Reason.ADMITTED:
            admitted.append(now)
    for start in admitted:
        assert bisect_left(admitted, start + 1.0) - bisect_left(admitted, start) <= 64
