"""Gains of list methods in the world of known truth: small runs, orders only."""

from __future__ import annotations

import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.training.slate.fit import StepTraining
from relaygr.training.slate.gain_rows import RERANKERS, GainOptions, Measured, summarise
from relaygr.training.slate.gains import gains
from relaygr.training.slate.world import WorldConfig


def test_a_quick_run() -> None:
    options = GainOptions(requests=60, lists=(600,), rerankers=False)
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
    (margin,) = report.margins
    assert (margin.than, margin.points) == ("greedy", pytest.approx(served.gain - greedy.gain))
    assert margin.low <= margin.points <= margin.high
    with pytest.raises(KeyError):
        report.row("greedy", 7)
    with pytest.raises(KeyError):
        report.family("mmr")


def test_the_order_of_methods_in_a_quick_form() -> None:
    """Pointwise < MMR < greedy <= beam 4, on fewer lists and requests than in the slow test."""
    report = gains([7], GainOptions(requests=120, lists=(2000,), oracle=False))
    mmr, greedy, beam = report.family("mmr"), report.row("greedy", 2000), report.row("beam4", 2000)
    assert 0 < mmr.low < mmr.gain < greedy.gain <= beam.gain
    assert all(report.row("default", 2000).gain > report.family(name).gain for name in RERANKERS)
    over_mmr = next(one for one in report.margins if one.than.startswith("mmr"))
    assert over_mmr.low > 0


def test_an_over_fitted_model_collapses_under_a_free_search() -> None:
    world = WorldConfig(items=1000, candidates=40, length=6)
    options = GainOptions(
        requests=40,
        lists=(200,),
        rerankers=False,
        oracle=False,
        served=False,
        free=True,
        members=2,
        probed=15,
        world=world,
    )
    report = gains([3], options)
    free, greedy = report.row("over-fitted beam8 of all", 200), report.row("greedy", 200)
    assert free.gain < greedy.gain - 5
    assert free.inflation is not None
    assert free.inflation > 1.1
    assert {"bound of 2", "over-fitted bound of 2", "over-fitted mean of 2 of all"} < {
        row.method for row in report.rows
    }
    by_cell = {(cell.fitted, cell.width, cell.candidates): cell for cell in report.cells}
    assert len(by_cell) == len(report.cells) == 12
    assert by_cell[True, 8, 40].inflation > by_cell[True, 8, 20].inflation
    assert by_cell[True, 8, 40].inflation > by_cell[False, 8, 40].inflation + 0.1


def test_processes_find_the_same() -> None:
    options = GainOptions(requests=4, lists=(40,), rerankers=False, training=StepTraining(epochs=5))
    told = list[str]()
    alone, spread = gains([0, 1], options), gains([0, 1], options, told.append, workers=2)
    assert alone.rows == spread.rows
    assert told[-1] == "gains: 2 of 2 seeds"


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
    for change, name in (
        ({"requests": 0}, "requests"),
        ({"lists": (0,)}, "lists"),
        ({"members": 5}, "free"),
        ({"probed": -1}, "probed"),
    ):
        with pytest.raises(ConfigError) as caught:
            GainOptions(**change)  # type: ignore[arg-type]
        assert caught.value.path == name
    with pytest.raises(ConfigError, match="seeds"):
        gains([])


@pytest.mark.slow
def test_the_order_of_methods() -> None:
    report = gains([10, 11, 12], GainOptions(requests=300, free=True, members=5, probed=100), workers=2)
    mmr, greedy, beam = report.family("mmr"), report.row("greedy", 8000), report.row("beam4", 8000)
    assert 0 < mmr.gain < greedy.gain <= beam.gain
    default = report.row("default", 8000)
    assert default.gain >= 14
    assert default.low > mmr.high
    assert all(
        margin.low > 0 for margin in report.margins if margin.lists == 8000 and margin.than != "greedy"
    )
    for number in (8000, 600):
        assert report.row("default", number).gain >= report.row("greedy", number).gain - 1
    free = report.row("over-fitted beam8 of all", 600)
    assert free.gain < report.row("greedy", 600).gain - 10
    assert free.inflation is not None
    assert free.inflation > 1.3
    # Choice by the lower bound of five inside the trust region, and by the mean over all candidates.
    assert report.row("bound of 5", 600).gain >= report.row("greedy", 600).gain - 1
    bound, mean = report.row("over-fitted bound of 5", 600), report.row("over-fitted mean of 5 of all", 600)
    alone = report.row("over-fitted greedy", 600).gain
    assert bound.gain >= alone - 1
    assert mean.gain < min(alone - 2, report.row("greedy", 600).gain - 10)
    for cell in report.cells:
        assert (cell.inflation > 1.05) == cell.fitted, cell
