"""Inflation and drift: what is remembered, what counts, and what stays bounded."""

from __future__ import annotations

import numpy as np
import pytest

from relaygr.serving.slate import inflation as module
from relaygr.serving.slate.drift import ContextDrift
from relaygr.serving.slate.inflation import (
    ALARM,
    LEAST,
    Group,
    Inflation,
    InflationWatch,
    ListName,
    lists_class,
)

GROUP = Group("m", "beam4", "3-4")


def told(watch: InflationWatch, predicted: float, realised: float, times: int, group: Group = GROUP) -> None:
    for at in range(times):
        watch.promise(ListName("shop", f"{group}{at}"), group, predicted, 5)
        assert watch.outcome(ListName("shop", f"{group}{at}"), realised) == (group, predicted)


@pytest.mark.parametrize(
    ("lists", "name"), [(0, "1"), (1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (5, "5-8"), (9, "9+")]
)
def test_classes_of_pools(lists: int, name: str) -> None:
    assert lists_class(lists) == name


@pytest.mark.parametrize(
    ("times", "predicted", "alarm"),
    [(LEAST, 1.06, True), (LEAST - 1, 1.06, False), (LEAST, 1.04, False), (LEAST, 0.5, False)],
)
def test_enough_lists_that_are_worth_less_than_promised_alarm(
    times: int, predicted: float, alarm: bool
) -> None:
    watch = InflationWatch()
    told(watch, predicted, 1.0, times)
    assert watch.groups()[GROUP].alarm is alarm
    assert watch.overall("m").ratio == pytest.approx(predicted)
    assert watch.overall("other") == Inflation(0, 0, 0)


def test_lists_that_are_worth_nothing_have_no_ratio_and_alarm() -> None:
    watch = InflationWatch()
    told(watch, 1.0, 0.0, LEAST)
    assert watch.groups()[GROUP].ratio is None
    assert watch.groups()[GROUP].alarm


@pytest.mark.parametrize(
    ("predicted", "realised", "alarm"),
    [
        (-1.0, -1.0, False),
        (-0.96, -1.0, False),
        (-0.94, -1.0, True),
        (-1.5, -1.0, False),  # better than promised
        (0.5, -1.0, True),
        (-0.5, 0.0, False),
        (0.0, 0.0, False),
        (0.1, 0.0, True),
    ],
)
def test_the_alarm_is_right_for_worth_of_any_sign(predicted: float, realised: float, alarm: bool) -> None:
    watch = InflationWatch()
    told(watch, predicted, realised, LEAST)
    assert watch.groups()[GROUP].alarm is alarm
    assert watch.overall("m").alarm is alarm
    assert watch.groups()[GROUP].ratio is None


def test_only_the_last_outcomes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    watch = InflationWatch()
    told(watch, 2.0, 1.0, 5)
    told(watch, 1.0, 1.0, 2)
    assert watch.groups()[GROUP] == Inflation(3, 4.0, 3.0)


def test_groups_are_kept_apart_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS", 2)
    watch, groups = InflationWatch(), [Group("m", name, "2") for name in ("greedy", "mmr", "beam4")]
    for at, group in enumerate(groups):
        told(watch, 1.0 + at, 1.0, 1, group)
    assert {group.generator: one.ratio for group, one in watch.groups().items()} == {"mmr": 2.0, "beam4": 3.0}


def test_only_the_last_promises_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    watch = InflationWatch()
    for name in ("a", "b", "c"):
        watch.promise(ListName("shop", name), GROUP, 1.0, 5)
    assert watch.positions(ListName("shop", "c")) == 5
    assert watch.positions(ListName("other", "c")) is None
    assert watch.outcome(ListName("other", "c"), 1.0) is None  # not its list
    asked = [ListName("shop", name) for name in ("a", "b", "c", "c")]
    assert [watch.outcome(name, 1.0) is not None for name in asked] == [
        False,
        True,
        True,
        False,
    ]
    assert ALARM == 1.05


def test_drift_is_that_of_recomputation() -> None:
    """Whatever was told, it is the last lists against the first, by the definition."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((57, 2)) * (1.0, 4.0) + np.linspace(0, 3, 57)[:, None]
    drift = ContextDrift(10)
    for at, row in enumerate(rows):
        drift.tell({"a": row[0], "b": row[1]})
        first, last = rows[:10], rows[max(at - 9, 0) : at + 1]
        moved = (last.mean(0) - first.mean(0)) / first.std(0) if at >= 9 else np.zeros(2)
        assert list(drift.drift().values()) == pytest.approx(moved.tolist())


def test_a_feature_that_never_moved_and_then_does_is_seen() -> None:
    drift = ContextDrift(4)
    assert drift.drift() == {}
    for _ in range(4):
        drift.tell({"page": 0.0})
    assert drift.drift() == {"page": 0.0}
    drift.tell({})  # of a fallback
    drift.tell({"page": 1.0})
    assert drift.drift()["page"] == pytest.approx(250.0)
    drift.tell({"other": 1.0})
    assert drift.drift() == {"other": 0.0}
