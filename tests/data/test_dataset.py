"""What was written is read back, the same bytes every time, and a damaged folder is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    dead = dead_pid()
    gone = [f".d.{dead}-0123abcd.new", f".d.{dead}-0123abcd.old"]
    kept = [
        f".d.{os.getpid()}-0123abcd.new",  # that process lives
        f".d.{os.getppid()}-0123abcd.old",
        f".e.{dead}-0123abcd.new",  # another dataset
        f".d.{dead}-0123abcd.news",
        f".dd.{dead}-0123abcd.new",
    ]
    for name in gone + kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "users.npy").write_bytes(b"x")
    write(tmp_path / "d", SMALL)
    assert sorted(child.name for child in tmp_path.iterdir()) == sorted([*kept, "d"])


def test_a_failed_write_keeps_what_may_be_the_only_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = tmp_path / f".d.{dead_pid()}-0123abcd.old"
    only.mkdir()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relaygr.data.write.np.save", full)
    with pytest.raises(BackendError, match="No space left"):
        write(tmp_path / "d", SMALL)
    assert only.exists()


@pytest.mark.parametrize(
    ("length", "words"), [(225, "has 225 bytes, limit 224"), (300, "300 bytes, limit 224")]
)
def test_a_long_folder_name_is_refused(tmp_path: Path, length: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        write(tmp_path / ("x" * length), SMALL)
    with pytest.raises(ConfigError, match=r"out: .* cannot be used: File name too long"):
        write(tmp_path / ("x" * 300) / "d", SMALL)
    assert open_events(write(tmp_path / ("x" * 224), SMALL)).n_events == 6


@pytest.mark.parametrize("field", ["name", "source", "licence"])
def test_texts_that_are_not_unicode_are_refused(tmp_path: Path, field: str) -> None:
    texts = {"name": "n", "source": "s", "licence": "l", field: "a\udce9"}
    with pytest.raises(ConfigError, match=rf"{field}: 'a\\udce9' is not valid Unicode"):
        write_events(tmp_path / "d", SMALL, **texts)
    assert not list(tmp_path.iterdir())


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
        (table(["a"], [(0, 1, 10**11)]), "timestamps", "100000000000 s, limit 99999999999"),
        (
            EventTable(["a"], *(np.zeros(1, np.int64) for _ in range(4)), action_names=("x", "x")),
            "actions",
            "'x' stands more than once",
        ),
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


def header(text: bytes) -> Callable[[Path], None]:
    """Another header before the six action sets."""

    def replace(folder: Path) -> None:
        padded = text + b"\n"
        start = b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little")
        (folder / "actions.npy").write_bytes(start + padded + np.ones(6, "<i8").tobytes())

    return replace


def set_actions(names: list[str]) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps(meta | {"actions": names}))

    return replace


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
        (save("timestamps", [10, 30, 30, 49, 50, 10**11]), "timestamps", "100000000000 s at event 5, limit"),
        (
            save("timestamps", [10, 30 + 2**62, 2**62 + 30, 49, 50, 50]),
            "timestamps",
            "at event 1, limit 9999",
        ),
        (save("timestamps", [9, 30, 30, 49, 50, 50]), "statistics", "says seconds 10 to 50, .* from 9 to 50"),
        (save("actions", [1, 1, 1, -1, 1, 1]), "actions", "-1 at event 3 sets a bit that meta.json does not"),
        (save("actions", [1, 1, 1, 1, 1, 2]), "actions", "2 at event 5 sets a bit .* names: engage"),
        (set_actions([]), "actions", "0 names, limit 1 to 63"),
        (set_actions([f"a{number}" for number in range(70)]), "actions", "70 names, limit 1 to 63"),
        (set_actions(["engage", "like", "like"]), "actions", "'like' stands more than once"),
        (patch_meta('"items": 6', '"items": -6'), "statistics", "-6 items, limit 1 to 6"),
        (patch_meta('"items": 6', '"items": 7'), "statistics", "7 items, limit 1 to 6"),
        (patch_meta('"first_s": 10', '"first_s": -10'), "statistics", "says seconds -10 to 50"),
        (patch_meta('"users": 4', '"users": -4'), "statistics", "-4 users"),
        (
            header(b"{'descr': '<i8', 'fortran_order': False, 'shape': (6,), "),
            "actions",
            "its header is b\"{'d",
        ),
        (header(b"{'descr': ((((((, 'shape': (6,), }"), "actions", "its header is"),
        (header(b"{'descr': '<i3', 'fortran_order': False, 'shape': (6,), }"), "actions", "not a readable"),
        (header(b"{'descr': '|O8', 'fortran_order': False, 'shape': (6,), }"), "actions", "dtype object"),
        (header(b"{'descr': '<i8', 'fortran_order': False, 'shape': (7,), }"), "actions", "48 bytes .* 56"),
        (
            header(b"{'descr': '<i8', 'fortran_order': False, 'shape': (999999999999999999,), }"),
            "actions",
            "48 bytes behind the header, expected 7999999999999999992",
        ),
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


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 127), byte=st.integers(0, 255))
def test_a_header_byte_may_be_anything(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    folder = write(tmp_path_factory.getbasetemp() / "header", SMALL)
    data = bytearray((folder / "offsets.npy").read_bytes())
    data[at] = byte
    (folder / "offsets.npy").write_bytes(data)
    try:
        offsets = open_events(folder).offsets
    except DataError:
        return
    assert offsets.tolist() == [0, 3, 3, 6, 6]


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
