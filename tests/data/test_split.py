"""Cuts never divide a second, and evaluation requests equal those a loop over the events would list."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.data.split import EvalRequest, Split, evaluation_requests, prefix_lengths, temporal_split
from relaygr.data.write import EventTable, write_events


def dataset(folder: Path, times: list[list[int]]) -> Events:
    owner = np.array([user for user, mine in enumerate(times) for _ in mine], dtype=np.int64)
    seconds = np.array([second for mine in times for second in mine], dtype=np.int64)
    users = [f"u{user}" for user in range(len(times))]
    table = EventTable(users, owner, np.arange(len(owner)), seconds, np.ones(len(owner), np.int64))
    return write_events(folder / "d", table, name="", source="", licence="")


def by_loop(events: Events, from_s: int, until_s: int, min_history: int) -> list[EvalRequest]:
    found = []
    for user in range(events.n_users):
        end = 0
        for second, group in groupby(events.history(user)[1].tolist()):
            count = len(list(group))
            if from_s <= second < until_s and end >= min_history:
                found.append(EvalRequest(user, second, end, (end, end + count)))
            end += count
    return found


def test_quantiles(tmp_path: Path) -> None:
    events = dataset(tmp_path, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    assert temporal_split(events) == Split(8, 9)
    assert temporal_split(events, 0.5, 0.5) == Split(5, 10)
    assert temporal_split(events, 1.0, 0.0) == Split(10, 10)


def test_a_tie_goes_to_one_side(tmp_path: Path) -> None:
    events = dataset(tmp_path, [[1, 5, 5, 5, 5, 5, 5, 9], [5, 5]])
    assert temporal_split(events, 0.5, 0.3) == Split(5, 5)
    assert prefix_lengths(events, 5).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("train", "valid"), [(0.0, 0.1), (1.1, 0.0), (0.8, 0.3), (0.8, -0.1), (float("nan"), 0)]
)
def test_shares_are_checked(tmp_path: Path, train: float, valid: float) -> None:
    with pytest.raises(ConfigError, match="must be in"):
        temporal_split(dataset(tmp_path, [[1]]), train, valid)


def test_nothing_to_split(tmp_path: Path) -> None:
    events = dataset(tmp_path, [[]])
    with pytest.raises(ConfigError, match="no events to split"):
        temporal_split(events)
    assert evaluation_requests(events, 0, 10) == []
    assert prefix_lengths(events, 10).tolist() == [0]


def test_positives_are_the_events_of_the_second(tmp_path: Path) -> None:
    events = dataset(tmp_path, [[], [1, 2, 2, 3], [2], [2, 2, 9], []])
    assert evaluation_requests(events, 2, 9) == [EvalRequest(1, 2, 1, (1, 3)), EvalRequest(1, 3, 3, (3, 4))]
    assert [
        (request.user, request.time_s) for request in evaluation_requests(events, 2, 10, min_history=0)
    ] == [
        (1, 2),
        (1, 3),
        (2, 2),
        (3, 2),
        (3, 9),
    ]


def test_a_sample_is_seeded_ordered_and_drawn_from_all(tmp_path: Path) -> None:
    events = dataset(tmp_path, [list(range(50))] * 10)
    everything = evaluation_requests(events, 0, 50)
    sample = evaluation_requests(events, 0, 50, max_requests=40, seed=1)
    assert sample == evaluation_requests(events, 0, 50, max_requests=40, seed=1)
    assert sample != evaluation_requests(events, 0, 50, max_requests=40, seed=2)
    assert len(sample) == 40
    assert sample == [request for request in everything if request in set(sample)]
    assert evaluation_requests(events, 0, 50, max_requests=10_000) == everything
    assert evaluation_requests(events, 0, 50, max_requests=0) == []


@pytest.mark.parametrize("bad", [{"min_history": -1}, {"max_requests": -1}])
def test_counts_are_checked(tmp_path: Path, bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="-1 must not be negative"):
        evaluation_requests(dataset(tmp_path, [[1]]), 0, 2, **bad)


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.lists(st.integers(0, 8), max_size=8), max_size=5),
    window=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    min_history=st.integers(0, 3),
)
def test_agrees_with_a_loop(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[list[int]],
    window: tuple[int, int],
    min_history: int,
) -> None:
    events = dataset(tmp_path_factory.getbasetemp() / "split", times)
    assert evaluation_requests(events, *window, min_history) == by_loop(events, *window, min_history)
    expected = [sum(second < window[0] for second in mine) for mine in times]
    assert prefix_lengths(events, window[0]).tolist() == expected
