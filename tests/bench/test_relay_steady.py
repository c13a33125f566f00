"""Looking whether the machine still runs at the speed that tau was measured at."""

from __future__ import annotations

import asyncio

import pytest

from relaygr.bench import relay_steady
from relaygr.bench.relay_speed import Speed
from relaygr.bench.relay_steady import Probe
from relaygr.relay.latency import Coefficients

SPEED = Speed(
    tau_ms=10.0,
    median_ms=9.5,
    p10_ms=9.0,
    p90_ms=11.0,
    fitted_tau_ms=10.0,
    overhead_ms=1.0,
    samples=99,
    coefficients=Coefficients(t0_ms=1.0, t1_ms=0.001, t2_ms=1e-6, t_launch_ms=0.1),
)


def probe(*looks: list[float], most_s: float = 60.0) -> Probe:
    left = list(looks)

    async def passes() -> list[float]:
        return left.pop(0) if len(left) > 1 else left[0]

    return Probe(passes, SPEED, most_s)


@pytest.mark.parametrize(
    ("passes", "holds"),
    [
        ([10.0] * 20, True),
        ([5.0] * 20, True),  # faster is no reason to wait
        ([11.5] * 20, False),
        ([10.0] * 19 + [90.0], True),  # one slow pass in twenty
        ([10.0] * 15 + [30.0] * 5, False),
        ([10.0] * 15 + [12.4] * 5, True),
    ],
)
def test_median_and_tail_are_compared_with_tau(passes: list[float], holds: bool) -> None:
    assert asyncio.run(probe(passes).holds()) is holds


def test_it_waits_until_the_machine_is_as_fast_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_steady, "_PAUSE_S", 0.01)
    slow, fast = [20.0] * 9, [10.0] * 9
    found = probe(slow, slow, slow, fast)
    assert asyncio.run(found.wait()) is True
    assert 0.04 <= found.waited_s < 5.0


def test_it_waits_for_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_steady, "_PAUSE_S", 0.01)
    found = probe([20.0] * 9, most_s=0.03)
    assert asyncio.run(found.wait()) is False
    waited_s = found.waited_s
    assert asyncio.run(found.wait()) is False
    assert found.waited_s == waited_s
