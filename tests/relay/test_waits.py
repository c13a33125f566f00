"""Waits behind passes of one length, against the queue itself and published values."""

from __future__ import annotations

import math
import random

import pytest

from relaygr.relay.waits import inline_wait_ms, wait_passes


def simulated(load: float, arrivals: int = 200_000) -> float:
    """The 99th percentile of the wait, by Lindley's recursion, in passes."""
    draw, wait, waits = random.Random(7), 0.0, []
    for _ in range(arrivals):
        waits.append(wait)
        wait = max(wait + 1.0 - draw.expovariate(load), 0.0)
    return sorted(waits)[int(0.99 * arrivals)]


@pytest.mark.parametrize("load", [0.02, 0.05, 0.1, 0.2, 0.3, 0.5])
def test_the_wait_of_a_queue_that_is_played(load: float) -> None:
    assert wait_passes(load) == pytest.approx(simulated(load), rel=0.04, abs=0.02)


def test_the_wait_is_that_of_its_definition() -> None:
    """At a load of 0.1, P(W <= t) = 0.9 exp(0.1 t) below one pass."""
    assert wait_passes(0.1) == pytest.approx(math.log(0.99 / 0.9) / 0.1, abs=1e-6)


def test_no_load_no_wait_and_a_full_slot_waits_for_ever() -> None:
    assert wait_passes(0.0) == wait_passes(0.01) == 0.0
    assert wait_passes(0.98) == wait_passes(3.0) == math.inf
    assert inline_wait_ms(40.0, 0.0) == inline_wait_ms(0.0, 100.0) == 0.0


def test_the_wait_grows_with_the_load() -> None:
    waits = [wait_passes(load / 100) for load in range(100)]
    assert waits == sorted(waits)


def test_milliseconds() -> None:
    assert inline_wait_ms(40.0, 5.0) == pytest.approx(40 * wait_passes(0.2))
