"""Parquet: types, nulls, batches and damage; and what happens without pyarrow."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.readers.fields import hash_item
from relaygr.data.readers.interface import Read
from relaygr.data.readers.parquet import BATCH_ROWS, ParquetReader

USERS = pyarrow.array(["a", "b"])
ITEMS = pyarrow.array([1, 2], pyarrow.int64())
TIMES = pyarrow.array([5, 6], pyarrow.int64())


def read(folder: Path, columns: dict[str, Any], **options: object) -> Read:
    file = folder / "events.parquet"
    whole = {"user_id": USERS, "item_id": ITEMS, "timestamp": TIMES} | columns
    parquet.write_table(pyarrow.table(whole), file)
    return ParquetReader(**options).read(file)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("users", "names"),
    [
        (pyarrow.array([1, -2], pyarrow.int16()), ["1", "-2"]),
        (pyarrow.array([2**64 - 1, 0], pyarrow.uint64()), ["18446744073709551615", "0"]),
        (pyarrow.array(["é", "b"], pyarrow.large_string()), ["é", "b"]),
        (pyarrow.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
        (pyarrow.array([b"x", "é".encode()], pyarrow.binary()), ["x", "é"]),
    ],
)
def test_types_of_users(tmp_path: Path, users: Any, names: list[str]) -> None:
    assert list(read(tmp_path, {"user_id": users}).table.users) == names


@pytest.mark.parametrize(
    ("times", "unit", "seconds"),
    [
        (pyarrow.array([5, 6], pyarrow.uint8()), "s", [5, 6]),
        (pyarrow.array([1421001028999, 999], pyarrow.int64()), "ms", [1421001028, 0]),
        (pyarrow.array([1421001028.0, 6.0]), "s", [1421001028, 6]),
        (pyarrow.array([1421001028, 6], pyarrow.timestamp("s")), "ms", [1421001028, 6]),
        (pyarrow.array([1421001028999, 6], pyarrow.timestamp("ms")), "s", [1421001028, 0]),
        (pyarrow.array([1421001028999999, 6], pyarrow.timestamp("us", "Asia/Tokyo")), "s", [1421001028, 0]),
        (pyarrow.array([1421001028999999999, 6], pyarrow.timestamp("ns", "UTC")), "s", [1421001028, 0]),
    ],
)
def test_types_of_times(tmp_path: Path, times: Any, unit: str, seconds: list[int]) -> None:
    assert read(tmp_path, {"timestamp": times}, time_unit=unit).table.timestamps.tolist() == seconds


def test_items_and_flags(tmp_path: Path) -> None:
    flags = {"like": pyarrow.array([True, False]), "save": pyarrow.array([0, 1], pyarrow.int8())}
    table = read(tmp_path, flags, action_columns=("like", "save")).table
    assert table.actions.tolist() == [0b011, 0b101]
    hashed = read(tmp_path, {"item_id": pyarrow.array(["sku", "7"])}, item_ids="hash").table
    assert hashed.item_ids.tolist() == [hash_item("sku"), hash_item("7")]
    assert read(tmp_path, {"item_id": pyarrow.array(["-3", "7"])}).table.item_ids.tolist() == [-3, 7]


@pytest.mark.parametrize(
    ("columns", "column", "reason", "words"),
    [
        ({"user_id": pyarrow.array(["a", None])}, "user_id", "null", ""),
        ({"item_id": pyarrow.array([1, None])}, "item_id", "null", ""),
        ({"timestamp": pyarrow.array([5, None], pyarrow.timestamp("ms"))}, "timestamp", "null", ""),
        ({"user_id": pyarrow.array(["a", ""])}, "user_id", "empty user", ""),
        ({"user_id": pyarrow.array(["a", "b\0"])}, "user_id", "contains NUL", ""),
        ({"user_id": pyarrow.array(["a", "b" * 300])}, "user_id", "user id too long", "300 bytes"),
        ({"user_id": pyarrow.array([b"a", b"\xff"], pyarrow.binary())}, "user_id", "bad UTF-8", r"b'\xff'"),
        ({"item_id": pyarrow.array([1, 2**63], pyarrow.uint64())}, "item_id", "out of int64 range", ""),
        ({"item_id": pyarrow.array(["1", "x"])}, "item_id", "not an integer", "'x'"),
        ({"timestamp": pyarrow.array([5.0, float("nan")])}, "timestamp", "not an integer", "nan"),
        ({"timestamp": pyarrow.array([5.0, float("inf")])}, "timestamp", "not an integer", "inf"),
        ({"timestamp": pyarrow.array([5.0, 6.5])}, "timestamp", "not an integer", "has a fraction"),
        ({"timestamp": pyarrow.array([5, -1])}, "timestamp", "negative timestamp", "-1"),
        (
            {"timestamp": pyarrow.array([5, -1], pyarrow.timestamp("ms"))},
            "timestamp",
            "negative timestamp",
            "'-1'",
        ),
        ({"timestamp": pyarrow.array([5, 10**12])}, "timestamp", "timestamp in a finer unit", "milliseconds"),
        ({"like": pyarrow.array([1, 2])}, "like", "not a flag", "'2'"),
        ({"like": pyarrow.array([True, None])}, "like", "null", ""),
    ],
)
def test_bad_rows(tmp_path: Path, columns: dict[str, Any], column: str, reason: str, words: str) -> None:
    flags = ("like",) if "like" in columns else ()
    with pytest.raises(DataError) as caught:
        read(tmp_path, columns, action_columns=flags)
    assert (caught.value.line, caught.value.column) == (2, column)
    assert caught.value.reason.startswith(reason)
    assert words in caught.value.reason
    found = read(tmp_path, columns, action_columns=flags, on_error="skip")
    assert (list(found.table.users), len(found.table.item_ids)) == ([found.table.users[0]], 1)
    assert [(skipped.reason.value, skipped.count) for skipped in found.skipped] == [(reason, 1)]


@pytest.mark.parametrize(
    ("columns", "column", "words"),
    [
        ({"item_id": pyarrow.array([[1], [2]])}, "item_id", "expected strings or integers"),
        ({"item_id": pyarrow.array([1.0, 2.0])}, "item_id", "type double, expected strings or integers"),
        ({"user_id": pyarrow.array([{"x": 1}, {"x": 2}])}, "user_id", "expected strings or integers"),
        ({"timestamp": pyarrow.array(["5", "6"])}, "timestamp", "expected integers, floats or timestamps"),
        ({"timestamp": pyarrow.array([5, 6], pyarrow.date32())}, "timestamp", "type date32"),
        ({"like": pyarrow.array(["1", "0"])}, "like", "expected booleans or integers"),
        ({"other": pyarrow.array([1, 2])}, "like", "missing column; the file has 'user_id'"),
    ],
)
def test_columns_of_the_wrong_type(tmp_path: Path, columns: dict[str, Any], column: str, words: str) -> None:
    flags = ("like",) if column == "like" else ()
    with pytest.raises(DataError) as caught:
        read(tmp_path, columns, action_columns=flags, on_error="skip")
    assert caught.value.column == column
    assert words in caught.value.reason


def test_a_column_that_stands_twice(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays(
        [USERS, ITEMS, ITEMS, TIMES], names=["user_id", "item_id", "item_id", "timestamp"]
    )
    parquet.write_table(table, tmp_path / "e")
    with pytest.raises(DataError, match="column 'item_id': stands more than once"):
        ParquetReader().read(tmp_path / "e")


def test_rows_are_numbered_over_all_batches(tmp_path: Path) -> None:
    count = 2 * BATCH_ROWS + 100
    times = pyarrow.array([*range(count), None])
    columns = {
        "user_id": pyarrow.array([str(row % 9) for row in range(count + 1)]),
        "item_id": pyarrow.array(range(count + 1)),
        "timestamp": times,
    }
    with pytest.raises(DataError) as caught:
        read(tmp_path, columns)
    assert (caught.value.line, caught.value.column) == (count + 1, "timestamp")
    seen: list[int] = []
    table = ParquetReader(on_error="skip").read(tmp_path / "events.parquet", progress=seen.append).table
    assert table.timestamps.tolist() == list(range(count))
    assert seen[-1] == count + 1


def test_damage_is_named(tmp_path: Path) -> None:
    read(tmp_path, {})
    file = tmp_path / "events.parquet"
    data = file.read_bytes()
    for spoilt in (b"", b"PAR1", data[:-1], data[4:], b"\x1f\x8b" + data, data[:-8] + b"\xff" * 8):
        file.write_bytes(spoilt)
        with pytest.raises(DataError, match="damaged Parquet"):
            ParquetReader(on_error="skip").read(file)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(DataError, match="is a pipe"):
            ParquetReader().read(f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
        os.close(write_end)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"parquet: .*pip install 'relaygr\[parquet\]'"):
        ParquetReader().read(tmp_path / "events.parquet")
