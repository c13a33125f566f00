"""What slates are counted as."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from slate_metric_cases import lists, made, result, tell_slates

from relaygr.core.clock import ManualClock
from relaygr.listwise.request import Mode
from relaygr.listwise.result import Exploration, Reason, Stage
from relaygr.serving.recent import MINUTE_S, Recent
from relaygr.serving.slate.inflation import ListName
from relaygr.serving.slate.log_metrics import Fate
from relaygr.serving.slate.metrics import SlateMetrics, timed_out


class Counted:
    def __init__(self) -> None:
        self.registry, self.recent = CollectorRegistry(), Recent(ManualClock(1000.0))
        self.metrics = SlateMetrics(
            self.registry, self.recent, lambda: "f" * 32, lambda: 3, lambda: Mode.ON, 30
        )

    def value(self, name: str, **labels: str) -> Any:
        return self.registry.get_sample_value(f"relaygr_slate_{name}", {"model": "f" * 12, **labels})


@pytest.fixture
def told() -> Counted:
    counted = Counted()
    tell_slates(counted.metrics)
    return counted


def test_answers_are_counted_by_what_became_of_them(told: Counted) -> None:
    value = told.value
    assert [value("requests_total", mode=mode) for mode in ("on", "shadow", "off")] == [2, 1, 1]
    assert value("chosen_total", generator="greedy") == 2
    assert value("chosen_total", generator="pointwise") == 2
    assert value("stage_total", stage="evaluation") == 2
    assert [value("fallback_total", reason=why) for why in ("shadow", "deadline", "off")] == [1, 1, 1]
    assert value("timeouts_total") == value("unrestricted_total") == 1
    assert value("lookahead_budget_total") == 2
    assert value("unknown_items_total") == 4
    assert value("dropped_total", generator="dpp(1)") == 1
    assert [value("rejected_total", reason=why) for why in ("request", "infeasible", "overload")] == [1, 1, 1]
    assert value("waiting") == 3
    assert [value("mode", mode=mode) for mode in ("on", "off")] == [1, 0]


def test_rules_of_requests_have_no_name_of_their_own(told: Counted) -> None:
    for rule in ("authors", "length", "request"):
        assert told.value("relaxed_total", rule=rule) == 1
    assert told.value("relaxed_total", rule="of a request") is None


def test_lists_and_pools_are_measured(told: Counted) -> None:
    # Three items at right angles: (1 - 0) / 2. Two of one author in a list of three.
    assert told.value("list_distance_sum") / told.value("list_distance_count") == pytest.approx(0.5)
    assert told.value("author_share_sum") / told.value("author_share_count") == pytest.approx(2 / 3)
    # (0, 1, 2) and (0, 1, 3) order six pairs each of four items and share the five that are not of 2 and 3.
    assert told.value("pool_distance_sum") / told.value("pool_distance_count") == pytest.approx(1 - 5 / 7)
    assert told.value("feature_sum", feature="similarity:max") == pytest.approx(0.5 * 4)
    for stage in ("wait", "all", "fallback", "evaluation", "explanation"):
        assert told.value("seconds_count", stage=stage) == 4


def test_explored_lists_are_counted_and_are_no_measure_of_chosen_ones(told: Counted) -> None:
    assert told.value("explored_total", result="deadline") == 1
    names = ("list_distance_count", "author_share_count", "pool_distance_count")
    before = [told.value(name) for name in names]
    drawn = result(exploration=Exploration.DRAWN, generator="explore(0.1)", pool=lists()[:1])
    told.metrics.made(made(drawn), ListName("shop", "drawn"), 0.0, 0.001, [])
    assert told.value("explored_total", result="drawn") == 1
    assert told.value("chosen_total", generator="explore(0.1)") == 1
    assert [told.value(name) for name in names] == before
    assert told.value("feature_count", feature="similarity:max") == 4
    assert told.metrics.outcome(ListName("shop", "drawn"), 1.0)
    assert told.value("inflation", generator="explore(0.1)", top="30", lists="1") == 2.0
    assert told.metrics.status("", "", "").outcomes == 1  # of the chosen list


def test_a_settled_list_of_unknown_worth_is_settled(told: Counted) -> None:
    told.metrics.made(made(result()), ListName("shop", "again"), 0.0, 0.001, [])
    assert told.metrics.outcome(ListName("shop", "again"), None)
    assert not told.metrics.outcome(ListName("shop", "again"), 1.0)
    assert told.value("outcome_utility_count", generator="greedy", top="30", lists="2") == 1


def test_every_fate_of_a_logged_list_is_counted(told: Counted) -> None:
    assert [told.value("log_lists_total", fate=fate.value) for fate in Fate] == [1] * len(Fate)
    assert (told.value("log_waiting"), told.value("log_queued")) == (0, 0)


def test_inflation_is_predicted_by_realised_of_the_same_lists(told: Counted) -> None:
    whose = {"generator": "greedy", "top": "30", "lists": "2"}
    assert told.value("predicted_utility_sum", **whose) == 2.0
    assert told.value("outcome_utility_sum", **whose) == 1.8
    assert told.value("inflation", **whose) == pytest.approx(2.0 / 1.8)
    assert told.value("inflation_alarm", **whose) == 0  # of one list
    assert not told.metrics.outcome(ListName("shop", "r0"), 1.8)  # once
    assert not told.metrics.outcome(ListName("shop", "r1"), 1.8)  # a shadow's list was shown to nobody


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({}, False),
        ({"stage_reached": Stage.BEAM}, True),  # a list that was ready in time
        ({"stage_reached": Stage.FALLBACK, "fallback_reason": Reason.DEADLINE}, True),
        ({"stage_reached": Stage.FALLBACK, "fallback_reason": Reason.OFF}, False),
        ({"stage_reached": Stage.GREEDY, "fallback_reason": Reason.NAN}, False),
    ],
)
def test_what_is_a_timeout(changes: dict[str, Any], late: bool) -> None:
    assert timed_out(result(**changes)) is late


def test_the_status_page_reads_the_last_minute(told: Counted) -> None:
    counts = told.recent.counts(MINUTE_S)
    assert counts["slate made"] == 4
    assert counts["slate fallback deadline"] == counts["slate timeout"] == 1
    assert told.recent.latencies(MINUTE_S)["slate all"].total() == 4


def test_the_status_says_what_became_of_lists(told: Counted) -> None:
    said = told.metrics.status("v", "r", "s")
    assert (said.mode, said.value, said.rules, said.step, said.waiting) == ("on", "v", "r", "s", 3)
    assert said.minute.count == said.five_minutes.count == 4
    assert {one.name: one.minute for one in said.chosen} == {"greedy": 2, "pointwise": 2}
    assert {one.name: one.minute for one in said.fallbacks} == {"shadow": 1, "deadline": 1, "off": 1}
    assert {one.name: one.minute for one in said.relaxed} == {"authors": 1, "length": 1, "request": 1}
    assert {one.name: one.minute for one in said.refused} == {"request": 1, "infeasible": 1, "overload": 1}
    assert (said.timeouts, said.timeouts_five_minutes) == (1, 1)
    assert (said.outcomes, said.inflation) == (1, pytest.approx(2.0 / 1.8))
    assert not said.inflation_alarm
    assert (said.drift_feature, said.drift) == ("similarity:max", 0.0)


def test_promises_are_of_the_ranker_that_made_them() -> None:
    """An outcome that comes after other weights were loaded is counted with the weights of its list."""
    serving = ["a" * 32]
    registry = CollectorRegistry()
    recent = Recent(ManualClock(1000.0))
    metrics = SlateMetrics(registry, recent, lambda: serving[0], lambda: 0, lambda: Mode.ON, 20)
    metrics.made(made(result()), ListName("shop", "first"), 0.0, 0.001, [])
    serving[0] = "b" * 32
    assert metrics.outcome(ListName("shop", "first"), 1.0)
    labels = {"generator": "greedy", "top": "20", "lists": "2"}
    name = "relaygr_slate_inflation"
    assert registry.get_sample_value(name, {"model": "a" * 12, **labels}) == 2.0
    assert registry.get_sample_value(name, {"model": "b" * 12, **labels}) is None
    assert metrics.status("", "", "").inflation is None
