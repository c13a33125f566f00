"""What was written is read back, the same bytes every time, and a damaged folder is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import BackendError, ConfigError, DataError
from relaygr.data.dataset import COLUMNS, open_events
from relaygr.data.write import EventTable, write_events

EXTREME_IDS = [2**31, 2**53 + 1, 2**63 - 1, -(2**63)]


def table(users: list[str], rows: list[tuple[int, int, int]]) -> EventTable:
    """Rows are (user index, item, second)."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    ones = np.ones(len(rows), dtype=np.int64)
    return EventTable(users, columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy(), ones)


def write(folder: Path, events: EventTable) -> Path:
    write_events(folder, events, name="n", source="s", licence="l")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


SMALL = table(
    ["a", "idle", "b", "last"], [(2, 7, 50), (0, 1, 30), (0, 2, 10), (2, 8, 50), (0, 3, 30), (2, 9, 49)]
)


def test_histories_are_sorted_and_ties_keep_arrival_order(tmp_path: Path) -> None:
    events = open_events(write(tmp_path / "d", SMALL))
    assert (events.n_users, events.n_events) == (4, 6)
    assert [events.user(user) for user in range(4)] == ["a", "idle", "b", "last"]
    assert events.history(0)[0].tolist() == [2, 1, 3]
    assert events.history(0)[1].tolist() == [10, 30, 30]
    assert events.history(2)[0].tolist() == [9, 7, 8]
    for idle in (1, 3):
        assert [column.tolist() for column in events.history(idle)] == [[], [], []]
    assert events.meta.statistics.items == 6
    assert (events.meta.statistics.first_s, events.meta.statistics.last_s) == (10, 50)


def test_columns_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    events = open_events(write(tmp_path / "d", SMALL))
    assert isinstance(events.item_ids, np.memmap)
    items = events.history(0)[0]
    assert np.shares_memory(items, events.item_ids)
    assert not items.flags.writeable


@pytest.mark.parametrize("user", [-1, 4])
def test_user_index_is_checked(tmp_path: Path, user: int) -> None:
    events = open_events(write(tmp_path / "d", SMALL))
    with pytest.raises(IndexError, match=rf"user index {user} is outside \[0, 4\)"):
        events.user(user)
    with pytest.raises(IndexError):
        events.history(user)


def test_extreme_ids_and_long_names(tmp_path: Path) -> None:
    names = ["é" * 128, "x" * 256, " ", "\n", "0"]
    events = open_events(write(tmp_path / "d", table(names, [(1, item, 5) for item in EXTREME_IDS])))
    assert events.history(1)[0].tolist() == EXTREME_IDS
    assert [events.user(user) for user in range(5)] == names


@pytest.mark.parametrize("users", [[], ["a"]])
def test_empty_dataset(tmp_path: Path, users: list[str]) -> None:
    events = open_events(write(tmp_path / "d", table(users, [])))
    assert (events.n_users, events.n_events) == (len(users), 0)
    assert events.meta.statistics.last_s == 0


def test_same_events_same_bytes_and_replacing_leaves_nothing_behind(tmp_path: Path) -> None:
    first = content(write(tmp_path / "a", SMALL))
    write(tmp_path / "b", table(["z"], [(0, 1, 1)]))
    assert content(write(tmp_path / "b", SMALL)) == first
    assert sorted(first) == sorted(["meta.json", *(f"{column}.npy" for column in COLUMNS)])
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a", "b"]


def test_an_open_dataset_survives_its_replacement(tmp_path: Path) -> None:
    before = open_events(write(tmp_path / "d", SMALL))
    write(tmp_path / "d", table(["z"], [(0, 1, 1)]))
    assert before.history(0)[0].tolist() == [2, 1, 3]


@pytest.mark.parametrize("stranger", ["notes.txt", "meta.json", "users.npy"])
def test_other_folders_are_never_replaced(tmp_path: Path, stranger: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / stranger).write_text("precious")
    with pytest.raises(ConfigError, match="choose another folder"):
        write(tmp_path / "d", SMALL)
    assert content(tmp_path / "d") == {stranger: b"precious"}


def test_a_dataset_with_something_else_in_it_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "d", SMALL)
    (tmp_path / "d" / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"'notes\.txt'"):
        write(tmp_path / "d", SMALL)


def test_target_may_be_an_empty_folder_but_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert open_events(write(tmp_path / "d", SMALL)).n_events == 6
    (tmp_path / "f").write_text("precious")
    with pytest.raises(ConfigError, match="is a file"):
        write(tmp_path / "f", SMALL)
    with pytest.raises((BackendError, ConfigError)):
        write(tmp_path / "f" / "below", SMALL)


def test_a_failed_write_leaves_the_old_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(write(tmp_path / "d", SMALL))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relaygr.data.write.np.save", full)
    with pytest.raises(BackendError, match="No space left"):
        write(tmp_path / "d", table(["z"], [(0, 1, 1)]))
    assert content(tmp_path / "d") == before
    assert [child.name for child in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize(
    ("bad", "column", "words"),
    [
        (table(["a", "a"], []), "users", "more than once"),
        (table(["a\0"], []), "users", "NUL"),
        (table([""], []), "users", "must not be empty"),
        (table(["x" * 257], []), "users", "257 bytes, limit 256"),
        (table(["a"], [(1, 1, 1)]), "user_index", "outside the 1 users"),
        (table(["a"], [(-1, 1, 1)]), "user_index", "outside the 1 users"),
        (table(["a"], [(0, 1, -1)]), "timestamps", "-1 is negative"),
        (
            EventTable(["a"], *(np.zeros(1, np.int64) for _ in range(3)), np.full(1, 2)),
            "actions",
            "without a name",
        ),
        (EventTable(["a"], *(np.zeros(n, np.int64) for n in (1, 1, 2, 1))), "timestamps", "length 2"),
        (EventTable(["a"], *(np.zeros(1, np.int32) for _ in range(4))), "user_index", "int32"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, bad: EventTable, column: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        write(tmp_path / "d", bad)
    assert caught.value.column == column
    assert not list(tmp_path.iterdir())


def save(column: str, values: object) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / f"{column}.npy", np.asarray(values))


def patch_meta(old: str, new: str) -> Callable[[Path], None]:
    def patch(folder: Path) -> None:
        text = (folder / "meta.json").read_text()
        assert old in text
        (folder / "meta.json").write_text(text.replace(old, new))

    return patch


@pytest.mark.parametrize(
    ("damage", "column", "words"),
    [
        (lambda folder: (folder / "actions.npy").unlink(), "actions", "No such file"),
        (lambda folder: (folder / "actions.npy").write_bytes(b""), "actions", "not a readable .npy"),
        (lambda folder: (folder / "actions.npy").write_bytes(b"x" * 99), "actions", "not a readable .npy"),
        (save("actions", np.ones(5, np.int64)), "actions", "length 5, expected one per event, 6"),
        (save("actions", np.ones(6, np.int32)), "actions", "int32"),
        (save("actions", np.ones(6, ">i8")), "actions", ">i8"),
        (save("actions", np.ones((6, 1), np.int64)), "actions", "2 dimensions"),
        (save("users", ["a", "b", "c", "d"]), "users", "fixed-width bytes"),
        (save("users", [b"a", b"b", b"a", b"d"]), "users", "b'a' stands more than once"),
        (save("users", [b"a", b"", b"c", b"d"]), "users", "user 1: user: must not be empty"),
        (save("users", [b"a", b"\xff", b"c", b"d"]), "users", "user 1: 'utf-8' codec"),
        (save("users", [b"a" * 257, b"b", b"c", b"d"]), "users", "width 257 bytes, limit 256"),
        (save("offsets", [0, 3, 3, 6]), "offsets", "length 4, expected users .* 5"),
        (save("offsets", [0, 3, 3, 6, 7]), "offsets", "run from 0 to 7, expected 0 to 6"),
        (save("offsets", [1, 3, 3, 6, 6]), "offsets", "run from 1"),
        (save("offsets", [0, 4, 3, 6, 6]), "offsets", "decrease after index 1"),
        (save("timestamps", [10, 30, 29, 49, 50, 50]), "timestamps", "event 2 of user 0 is earlier"),
        (save("timestamps", [10, 30, 30, 49, 50, 49]), "timestamps", "event 5 of user 2 is earlier"),
        (save("timestamps", [-1, 30, 30, 49, 50, 50]), "timestamps", "negative at event 0"),
        (lambda folder: (folder / "meta.json").unlink(), "meta.json", "is .* a dataset"),
        (lambda folder: (folder / "meta.json").write_bytes(b"\xff{"), "meta.json", "malformed|invalid"),
        (lambda folder: (folder / "meta.json").write_bytes(b" " * (1 << 21)), "meta.json", "more than"),
        (patch_meta('"licence"', '"license"'), "meta.json", "license"),
        (
            patch_meta('"format_version": 1', '"format_version": 2'),
            "format_version",
            "2, this release reads 1",
        ),
        (patch_meta('"events": 6', '"events": 7'), "statistics", "7 events"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], column: str, words: str) -> None:
    damage(write(tmp_path / "d", SMALL))
    with pytest.raises(DataError, match=words) as caught:
        open_events(tmp_path / "d")
    assert caught.value.column == column
    assert str(tmp_path / "d") in str(caught.value)


def test_a_fall_between_users_is_fine_in_any_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(user, user, 100 - user) for user in range(20)]
    write(tmp_path / "d", table([f"u{user}" for user in range(20)], rows))
    for chunk in (1, 2, 3, 7):
        monkeypatch.setattr("relaygr.data.dataset._CHUNK", chunk)
        assert open_events(tmp_path / "d").n_events == 20


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))))
def test_any_order_of_rows_gives_stably_sorted_histories(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]
) -> None:
    events = open_events(write(tmp_path_factory.getbasetemp() / "any", table(list("abcd"), rows)))
    for user in range(4):
        expected = sorted(
            ((second, item) for owner, item, second in rows if owner == user), key=lambda e: e[0]
        )
        items, times, _ = events.history(user)
        assert list(zip(times.tolist(), items.tolist(), strict=True)) == expected
