"""Good files come back event for event, in every form CSV allows."""

from __future__ import annotations

import csv
import gzip
import io
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import open_events
from relaygr.data.readers.csvfile import CsvReader
from relaygr.data.readers.fields import hash_item, read_integer
from relaygr.data.readers.interface import Read
from relaygr.data.write import EventTable, write_events

HEAD = b"user_id,item_id,timestamp\n"


def read(folder: Path, data: bytes, **options: object) -> Read:
    file = folder / "events.csv"
    file.write_bytes(data)
    return CsvReader(**options).read(file)  # type: ignore[arg-type]


def rows(table: EventTable) -> list[tuple[str, int, int]]:
    columns = (table.user_index.tolist(), table.item_ids.tolist(), table.timestamps.tolist())
    return [(table.users[user], item, second) for user, item, second in zip(*columns, strict=True)]


def test_file_order_and_order_of_first_appearance(tmp_path: Path) -> None:
    table = read(tmp_path, HEAD + b"b,1,20\na,2,10\nb,3,20\nb,4,5\n").table
    assert list(table.users) == ["b", "a"]
    assert rows(table) == [("b", 1, 20), ("a", 2, 10), ("b", 3, 20), ("b", 4, 5)]
    assert table.actions.tolist() == [1, 1, 1, 1]
    assert table.action_names == ("engage",)


@pytest.mark.parametrize("item", [2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0, -1])
def test_item_ids_are_exact(tmp_path: Path, item: int) -> None:
    assert read(tmp_path, HEAD + f"a,{item},0\n".encode()).table.item_ids.tolist() == [item]


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"a,1,2\n",
        HEAD + b"a,1,2",
        HEAD + b"a,1,2\n\n",
        HEAD + b"a,1,2\n\r\n\n",
        HEAD.replace(b"\n", b"\r\n") + b"a,1,2\r\n",
        b"\xef\xbb\xbf" + HEAD + b"a,1,2\n",
        b'"user_id","item_id","timestamp"\n"a","1","2"\n',
        b"timestamp,extra,item_id,user_id\n2,,1,a\n",
        HEAD + b"a,+01,2.000\n",
        HEAD + b"a,1,2e0\n",
        gzip.compress(HEAD + b"a,1,2\n", mtime=0),
    ],
)
def test_forms_of_one_event(tmp_path: Path, data: bytes) -> None:
    assert rows(read(tmp_path, data).table) == [("a", 1, 2)]


def test_header_alone_is_an_empty_dataset(tmp_path: Path) -> None:
    table = read(tmp_path, HEAD).table
    assert open_events(write_events(tmp_path / "d", table, name="", source="", licence="").path).n_events == 0


def test_column_names_and_action_columns(tmp_path: Path) -> None:
    data = b"u,i,t,like,save\na,1,2,1,false\na,2,3,0,true\na,3,4,True,1\n"
    table = read(
        tmp_path, data, user_column="u", item_column="i", time_column="t", action_columns=("save", "like")
    ).table
    assert table.action_names == ("engage", "save", "like")
    assert table.actions.tolist() == [0b101, 0b011, 0b111]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action_columns": ("engage",)}, "'engage' is bit 0"),
        ({"action_columns": ("x", "x")}, "'x' is asked for twice"),
        ({"user_column": "timestamp"}, "'timestamp' is asked for twice"),
        ({"action_columns": tuple(f"c{number}" for number in range(63))}, "63 columns, limit 62"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CsvReader(**options)  # type: ignore[arg-type]


def test_hashed_item_ids(tmp_path: Path) -> None:
    table = read(tmp_path, HEAD + "a,sku-1,0\na,é,0\na,sku-1,0\n".encode(), item_ids="hash").table
    first, second, third = table.item_ids.tolist()
    assert first == third == hash_item("sku-1") != second
    # Fixed for ever: stored datasets and live requests must agree on it.
    assert hash_item("sku-1") == -1840803191160002099


@pytest.mark.parametrize(
    ("unit", "text", "seconds"),
    [
        ("s", "99999999999", 99999999999),
        ("ms", "1421001028999", 1421001028),
        ("ms", "999", 0),
        ("ms", "1999.0", 1),
    ],
)
def test_time_units(tmp_path: Path, unit: str, text: str, seconds: int) -> None:
    table = read(tmp_path, HEAD + f"a,1,{text}\n".encode(), time_unit=unit).table
    assert table.timestamps.tolist() == [seconds]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_pipe_is_read_once(tmp_path: Path, zipped: bool) -> None:
    data = HEAD + b"a,1,2\n" * 30_000
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(data) if zipped else data,))
    writer.start()
    table = CsvReader().read(pipe).table
    writer.join()
    assert len(table.item_ids) == 30_000


def test_a_pipe_may_hand_over_the_first_byte_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = gzip.compress(HEAD + b"a,1,2\n")

    def write() -> None:
        with pipe.open("wb", buffering=0) as stream:
            stream.write(data[:1])
            time.sleep(0.05)
            stream.write(data[1:])

    writer = threading.Thread(target=write)
    writer.start()
    assert rows(CsvReader().read(pipe).table) == [("a", 1, 2)]
    writer.join()


def test_progress_ends_with_all_rows(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_bytes(HEAD + b"a,1,2\n" * 70_000)
    seen: list[int] = []
    CsvReader().read(tmp_path / "events.csv", progress=seen.append)
    assert seen == [65_536, 70_000]


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), min_size=1, max_size=60
)


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(
        st.tuples(NAMES | st.sampled_from(["a", "b"]), st.integers(-(2**63), 2**63 - 1), st.integers(0, 5)),
        max_size=30,
    ),
    zipped=st.booleans(),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, int]], zipped: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "round"
    folder.mkdir(exist_ok=True)
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("user_id", "item_id", "timestamp"), *events])
    data = text.getvalue().encode()
    table = read(folder, gzip.compress(data) if zipped else data).table
    assert rows(table) == events
    stored = write_events(folder / "d", table, name="", source="", licence="")
    for user in range(stored.n_users):
        mine = [(second, item) for name, item, second in events if name == stored.user(user)]
        items, times, _ = stored.history(user)
        assert list(zip(times.tolist(), items.tolist(), strict=True)) == sorted(
            mine, key=lambda event: event[0]
        )


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**70), 2**70))
def test_integers_agree_with_int(value: int) -> None:
    if -(2**63) <= value < 2**63:
        assert read_integer(str(value)) == value
    else:
        with pytest.raises(ValueError, match="out of int64 range"):
            read_integer(str(value))
