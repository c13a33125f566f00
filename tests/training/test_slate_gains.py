"""Gains of list methods in the world of known truth: small runs, orders only."""

from __future__ import annotations

import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.training.slate.fit import StepTraining
from relaygr.training.slate.gain_rows import GainOptions, Measured, summarise
from relaygr.training.slate.gains import gains


def test_a_quick_run() -> None:
    options = GainOptions(requests=60, lists=(600,), rerankers=False, training=StepTraining(epochs=30))
    report = gains([0], options)
    greedy, beam = report.row("greedy", 600), report.row("beam4", 600)
    served, oracle = report.row("default", 600), report.row("oracle beam8")
    assert served.low > 0
    assert served.gain > greedy.gain - 1
    assert oracle.gain > report.row("oracle greedy").gain > beam.gain
    for row in report.rows:
        assert row.low < row.gain < row.high
    assert served.inflation is not None
    assert 0.5 < served.inflation < 2.0
    with pytest.raises(KeyError):
        report.row("greedy", 7)


def test_the_best_parameter_stands_for_its_family() -> None:
    base = np.full(50, 2.0)
    found = []
    for seed, (low, high) in enumerate(((1.1, 1.3), (1.2, 1.25))):
        one = Measured(seed, 50)
        one.true = {
            ("pointwise", None): base,
            ("mmr(0.5)", None): low * base,
            ("mmr(0.7)", None): high * base,
            ("greedy", 600): 1.5 * base,
        }
        found.append(one)
    report = summarise(found, GainOptions(requests=50), 0.0)
    assert [row.method for row in report.rows] == ["mmr(0.7)", "greedy"]
    assert report.rows[0].by_seed == pytest.approx((30.0, 25.0))
    assert report.rows[0].gain == pytest.approx(27.5)
    assert (report.rows[1].low, report.rows[1].high) == pytest.approx((50.0, 50.0))


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="requests"):
        GainOptions(requests=0)
    with pytest.raises(ConfigError, match="lists"):
        GainOptions(lists=(0,))


@pytest.mark.slow
def test_the_order_of_methods() -> None:
    report = gains([0, 1, 2], GainOptions(requests=300, free=True))
    mmr = next(row for row in report.rows if row.method.startswith("mmr"))
    greedy, beam = report.row("greedy", 8000), report.row("beam4", 8000)
    assert 0 < mmr.gain < greedy.gain <= beam.gain + 0.5
    assert report.row("default", 8000).gain > mmr.gain
    for number in (8000, 600):
        assert report.row("default", number).gain >= report.row("greedy", number).gain - 1
    free = report.row("over-fitted beam8 of all", 600)
    assert free.gain < report.row("greedy", 600).gain - 5
    assert free.inflation is not None
    assert free.inflation > 1.3
