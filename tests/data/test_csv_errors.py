"""Each kind of bad row is named with its place, or counted; a broken file always fails."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import DataError
from relaygr.data.readers.csvfile import CsvReader
from relaygr.data.readers.interface import Read

HEAD = b"user_id,item_id,timestamp\n"


def read(folder: Path, data: bytes, **options: object) -> Read:
    file = folder / "events.csv"
    file.write_bytes(data)
    return CsvReader(**options).read(file)  # type: ignore[arg-type]


BAD_ROWS = [
    (b"a,1", "", "wrong number of fields", "2, expected 3"),
    (b"a,1,2,3", "", "wrong number of fields", "4, expected 3"),
    (b"", "", "wrong number of fields", "0, expected 3"),
    (b'"a"x,1,2', "", "malformed CSV", "expected after"),
    (b'"' + b"a" * 200_000 + b'",1,2', "", "malformed CSV", "field larger than field limit"),
    (b"\xff,1,2", "user_id", "bad UTF-8", r"b'\xff'"),
    (b"a,1,2\xe9", "timestamp", "bad UTF-8", r"b'2\xe9'"),
    (b"a\x00,1,2", "user_id", "contains NUL", ""),
    (b"a,1\x00,2", "item_id", "contains NUL", ""),
    (b",1,2", "user_id", "empty user", ""),
    (b",x,y", "user_id", "empty user", ""),
    (b"x" * 257 + b",1,2", "user_id", "user id too long", "257 bytes, limit 256"),
    ("é".encode() * 129 + b",1,2", "user_id", "user id too long", "258 bytes, limit 256"),
    (b"a,,2", "item_id", "not an integer", "''"),
    (b"a, 1,2", "item_id", "not an integer", "' 1'"),
    (b"a,1_0,2", "item_id", "not an integer", ""),
    (b"a,1.0,2", "item_id", "not an integer", ""),
    ("a,١,2".encode(), "item_id", "not an integer", ""),
    (b"a,9223372036854775808,2", "item_id", "out of int64 range", "9223372036854775808"),
    (b"a,-9223372036854775809,2", "item_id", "out of int64 range", ""),
    (b"a," + b"9" * 5000 + b",2", "item_id", "out of int64 range", ""),
    (b"a,1,", "timestamp", "not an integer", ""),
    (b"a,1,nan", "timestamp", "not an integer", ""),
    (b"a,1,1.5", "timestamp", "not an integer", "has a fraction"),
    (b"a,1,1e-9999", "timestamp", "not an integer", "has a fraction"),
    (b"a,1,2024-01-01", "timestamp", "not an integer", ""),
    (b"a,1,-1", "timestamp", "negative timestamp", "'-1', limit 0"),
    (b"a,1,9223372036854775808", "timestamp", "out of int64 range", ""),
    (b"a,1,1e9999", "timestamp", "out of int64 range", ""),
    (b"a,1,9223372036854775807.0", "timestamp", "timestamp in a finer unit", "nanoseconds"),
    (
        b"a,1,1421001028000",
        "timestamp",
        "timestamp in a finer unit",
        "milliseconds, read as s; use --time-unit ms",
    ),
    (b"a,1,1421001028000.0", "timestamp", "timestamp in a finer unit", "milliseconds"),
    (b"a,1,1421001028000000", "timestamp", "timestamp in a finer unit", "microseconds"),
    (b"a,1,1421001028000000000", "timestamp", "timestamp in a finer unit", "nanoseconds"),
]
BAD_ROW_NAMES = [f"{number}-{reason}" for number, (_, _, reason, _) in enumerate(BAD_ROWS)]


@pytest.mark.parametrize(("row", "column", "reason", "words"), BAD_ROWS, ids=BAD_ROW_NAMES)
def test_a_bad_row_fails_with_its_place(
    tmp_path: Path, row: bytes, column: str, reason: str, words: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, HEAD + b"ok,1,2\n" + row + b"\nok,1,2\n")
    error = caught.value
    assert (error.file, error.line, error.column) == (str(tmp_path / "events.csv"), 3, column)
    assert error.reason.startswith(reason)
    assert words in error.reason
    assert len(str(error)) < 1000


@pytest.mark.parametrize(("row", "column", "reason", "words"), BAD_ROWS, ids=BAD_ROW_NAMES)
def test_a_bad_row_is_skipped_and_counted(
    tmp_path: Path, row: bytes, column: str, reason: str, words: str
) -> None:
    found = read(tmp_path, HEAD + b"a,1,2\n" + row + b"\n" + row + b"\nb,3,4\n", on_error="skip")
    assert list(found.table.users) == ["a", "b"]
    assert found.table.item_ids.tolist() == [1, 3]
    assert found.table.timestamps.tolist() == [2, 4]
    assert [(skipped.reason.value, skipped.count) for skipped in found.skipped] == [(reason, 2)]


def test_a_user_of_bad_rows_only_is_no_user(tmp_path: Path) -> None:
    assert list(read(tmp_path, HEAD + b"ghost,x,1\na,1,2\n", on_error="skip").table.users) == ["a"]


def test_bad_flag(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'2' must be 0, 1, true or false") as caught:
        read(tmp_path, b"user_id,item_id,timestamp,like\na,1,2,2\n", action_columns=("like",))
    assert caught.value.column == "like"


def test_empty_item_to_hash(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'item_id': empty item"):
        read(tmp_path, HEAD + b"a,,2\n", item_ids="hash")


def test_microseconds_are_refused_as_milliseconds_too(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="looks like microseconds, read as ms; divide the column first"):
        read(tmp_path, HEAD + b"a,1,1421001028000000\n", time_unit="ms")


def test_when_every_row_is_bad_the_first_is_raised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r":2: .*use --time-unit ms"):
        read(tmp_path, HEAD + b"a,1,1421001028000\n" * 3, on_error="skip")


@pytest.mark.parametrize("rest", [b"", b"b,1,2\n" * 100_000, b'b",1,2\n', b'b,"1",2\n'])
def test_an_open_quote_is_named_by_its_line(tmp_path: Path, rest: bytes) -> None:
    with pytest.raises(
        DataError, match=r"events\.csv:3: column '': quote not closed on its line: a field may"
    ):
        read(tmp_path, HEAD + b'b,1,2\n"a,1,2\n' + rest)


def test_an_open_quote_costs_its_own_row_only(tmp_path: Path) -> None:
    rows = b"a,1,1\n" + b'"b,1,1\n' + b"c,1,1\n" * 20_000 + b'c,1,"1\n' + b"\n" + b'd,"1",1\n'
    found = read(tmp_path, HEAD + rows, on_error="skip")
    assert len(found.table.item_ids) == 20_002
    assert list(found.table.users) == ["a", "c", "d"]
    counts = {skipped.reason.value: skipped.count for skipped in found.skipped}
    assert counts == {"quote not closed on its line": 2, "wrong number of fields": 1}


@pytest.mark.parametrize("bad", [b"x", b'"x', b'"x"y,1,2', b"b,1,2"])
def test_a_blank_line_within_the_file_is_bad_whatever_follows(tmp_path: Path, bad: bytes) -> None:
    data = HEAD + b"a,1,2\n\n\r\n" + bad + b"\n\n"
    with pytest.raises(DataError, match=r"events\.csv:3: .*wrong number of fields: 0, expected 3"):
        read(tmp_path, data)
    found = read(tmp_path, data, on_error="skip")
    assert sum(skipped.count for skipped in found.skipped) == (2 if bad == b"b,1,2" else 3)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("data", "line", "column", "words"),
    [
        (b"", 1, "", "empty file"),
        (gzip.compress(b"", mtime=0), 1, "", "empty file"),
        (b"user_id,item_id\na,1\n", 1, "timestamp", "missing column; the header has 'user_id', 'item_id'"),
        (b"user_id,itemid,timestamp\n", 1, "item_id", "did you mean 'itemid'?"),
        (b"user_id,item_id,timestamp,item_id\n", 1, "item_id", "more than once in the header"),
        (b"\n", 1, "user_id", "missing column"),
        (b'user_id,item_id,"timestamp\na,1,2\n', 1, "", "quote not closed on its line"),
        (HEAD + b"a,1," + b"1" * (1 << 21), 2, "", "line has more than 1048576 characters"),
        (gzip.compress(HEAD + b"a,1,2\n" * 50_000, mtime=0)[:-20], None, "", "truncated gzip"),
        (gzip.compress(HEAD + b"a,1,2\n", mtime=0)[:-2], 2, "", "truncated gzip"),
        (b"\x1f\x8bnot gzip at all", 0, "", "damaged gzip"),
        (gzip.compress(HEAD, mtime=0)[:10] + b"\xff" * 40, 0, "", "damaged gzip"),
        (gzip.compress(HEAD, mtime=0)[:-8] + b"\x00" * 8, 1, "", "damaged gzip: CRC check failed"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_bad_file_fails_always(
    tmp_path: Path, data: bytes, line: int | None, column: str, words: str, on_error: str
) -> None:
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        read(tmp_path, data, on_error=on_error)
    assert caught.value.column == column
    assert line is None or caught.value.line == line


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        CsvReader().read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="Is a directory"):
        CsvReader().read(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_events_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    for prefix in (b"", HEAD):
        try:
            found = read(folder, prefix + data, on_error="skip")
        except DataError:
            continue
        assert len(found.table.item_ids) == len(found.table.actions)
