"""How simulated passes scatter, and what a simulated server starts from."""

from __future__ import annotations

import pytest

from relaygr.relay.latency import Coefficients, LatencyModel
from relaygr.sim.costs import Costs, Noise, Scatter

COEFFICIENTS = Coefficients(t0_ms=2.0, t1_ms=0.01, t2_ms=1e-6, t_launch_ms=0.5)
SCATTER = (
    Scatter(fit_ms=25.0, chunk=False, ratios=(1.0,) * 30),
    Scatter(fit_ms=25.0, chunk=True, ratios=(1.1,) * 30),
    Scatter(fit_ms=4.0, chunk=False, ratios=(1.5,) * 30, hit=True),
)


@pytest.mark.parametrize(
    ("fit_ms", "chunk", "ratio"),
    [
        (3.0, False, 1.5),
        (4.0, False, 1.5),
        (9.9, False, 1.5),  # as near to 4 as to 25, by their ratio, is 10
        (10.1, False, 1.0),
        (25.0, False, 1.0),
        (90.0, False, 1.0),
        (2.0, True, 1.1),
        (50.0, True, 1.1),
    ],
)
def test_a_pass_scatters_like_the_nearest_of_few_that_were_measured(
    fit_ms: float, chunk: bool, ratio: float
) -> None:
    noise = Noise(Costs(coefficients=COEFFICIENTS, scatter=SCATTER), 0)
    assert {noise.ratio(fit_ms, chunk) for _ in range(20)} == {ratio}


def test_of_many_it_scatters_like_its_neighbours() -> None:
    scatter = tuple(Scatter(fit_ms=float(n), chunk=False, ratios=(float(n),)) for n in (1, 2, 4, 8, 16, 32))
    noise = Noise(Costs(coefficients=COEFFICIENTS, scatter=scatter), 0)
    assert {noise.ratio(5.0) for _ in range(200)} == {2.0, 4.0, 8.0, 16.0}
    assert {noise.ratio(100.0) for _ in range(200)} == {16.0, 32.0}


def test_nothing_measured_is_no_scatter() -> None:
    assert Noise(Costs(coefficients=COEFFICIENTS), 0).ratio(5.0) == 1.0


def test_a_server_starts_from_hits_and_long_passes_apart() -> None:
    model = LatencyModel(COEFFICIENTS, timed=Costs(coefficients=COEFFICIENTS, scatter=SCATTER).timed)
    assert model.error().samples == 90
    assert model.usual_ms(0, 4096, 128) == pytest.approx(1.5 * COEFFICIENTS.pass_ms(0, 4096, 128))
    assert model.p99_ms(4096, 0, 128) == pytest.approx(1.1 * COEFFICIENTS.pass_ms(4096, 0, 128))
