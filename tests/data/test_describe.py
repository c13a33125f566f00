"""The statistics equal those counted by hand, and those published for a real data set."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from relaygr.data.dataset import Events
from relaygr.data.describe import describe
from relaygr.data.readers.csvfile import CsvReader
from relaygr.data.write import EventTable, write_events


def dataset(folder: Path, histories: list[list[tuple[int, int]]]) -> Events:
    owner = np.array([user for user, mine in enumerate(histories) for _ in mine], dtype=np.int64)
    columns = np.array([event for mine in histories for event in mine], dtype=np.int64).reshape(-1, 2)
    users = [f"u{user}" for user in range(len(histories))]
    table = EventTable(
        users, owner, columns[:, 0].copy(), columns[:, 1].copy(), np.ones(len(owner), np.int64)
    )
    return write_events(folder / "d", table, name="", source="", licence="")


def test_by_hand(tmp_path: Path) -> None:
    gap = 6 * 3600
    events = dataset(tmp_path, [[(1, 0), (2, 0), (1, gap), (3, 2 * gap + 1)], [(3, 2 * gap + 1)], []])
    found = describe(events)
    assert (found.events, found.users, found.items) == (5, 3, 3)
    assert (found.first_s, found.last_s) == (0, 2 * gap + 1)
    assert (found.median_length, found.max_length) == (1, 4)
    assert found.same_second == 1 / 5
    # Exactly six hours do not end a session; one second more does.
    assert found.sessions == 3
    assert found.events_per_session == 5 / 3
    assert found.repeats == 1 / 5
    assert found.single_event_items == 1
    assert found.top_items_share == 2 / 5


@pytest.mark.parametrize(("between", "repeats"), [(49, 1), (50, 0)])
def test_the_repeat_window_is_fifty_events(tmp_path: Path, between: int, repeats: int) -> None:
    items = [7, *range(100, 100 + between), 7]
    found = describe(dataset(tmp_path, [[(item, 0) for item in items]]))
    assert found.repeats == repeats / len(items)


def test_long_users(tmp_path: Path) -> None:
    found = describe(
        dataset(tmp_path, [[(1, second) for second in range(n)] for n in (49, 50, 200, 999, 1000)])
    )
    assert (found.users_50, found.users_200, found.users_1000, found.users_10000) == (4, 3, 1, 0)
    assert found.long_users_share == 1000 / found.events


@pytest.mark.parametrize("histories", [[], [[]]])
def test_nothing(tmp_path: Path, histories: list[list[tuple[int, int]]]) -> None:
    found = describe(dataset(tmp_path, histories))
    assert (found.events, found.sessions, found.events_per_session) == (0, 0, 0)
    assert (found.same_second, found.top_items_share, found.p99_length) == (0, 0, 0)


def test_git_rails_matches_its_readme(tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    table = CsvReader().read(shared_data("git-rails/events.csv.gz")).table
    found = describe(write_events(tmp_path / "d", table, name="git-rails", source="", licence="MIT"))
    assert (found.events, found.users, found.items) == (199_149, 6_397, 13_895)
    first, last = (datetime.fromtimestamp(second, UTC).date() for second in (found.first_s, found.last_s))
    assert (str(first), str(last)) == ("2004-11-24", "2026-08-22")
    assert (found.median_length, found.p90_length, found.max_length) == (3, 18, 14_229)
    assert (found.users_50, found.users_200, found.users_1000, found.users_10000) == (291, 114, 35, 1)
    assert f"{found.long_users_share:.1%}" == "57.6%"
    assert f"{found.max_length / found.events:.1%}" == "7.1%"
    assert f"{found.repeats:.1%}" == "29.7%"
    assert f"{found.same_second:.1%}" == "63.7%"
    assert found.sessions == 40_479
    assert f"{found.events_per_session:.1f}" == "4.9"
    assert found.single_event_items == 2_256
    assert f"{found.top_items_share:.1%}" == "27.9%"
