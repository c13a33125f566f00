"""RecBole atomic files: typed headers, float timestamps, hashed tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.readers.fields import hash_item
from relaygr.data.readers.interface import Read
from relaygr.data.readers.recbole import RecBoleReader

HEAD = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def read(folder: Path, text: str, **options: object) -> Read:
    file = folder / "set.inter"
    file.write_text(text, encoding="utf-8")
    return RecBoleReader(**options).read(file)  # type: ignore[arg-type]


def test_float_timestamps_are_rounded_down(tmp_path: Path) -> None:
    times = {
        "881250949": 881250949,
        "881250949.0": 881250949,
        "881250949.999": 881250949,
        "8.81250949e8": 881250949,
        "0.5": 0,
        "1e-9": 0,
        "0": 0,
    }
    text = HEAD + "".join(f"a\tb\t1\t{time}\n" for time in times)
    assert read(tmp_path, text).table.timestamps.tolist() == list(times.values())
    millis = read(tmp_path, HEAD + "a\tb\t1\t881250949999.7\n", time_unit="ms")
    assert millis.table.timestamps.tolist() == [881250949]


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("nan", "not an integer: 'nan'"),
        ("inf", "not an integer"),
        ("-0.5", "negative timestamp: '-0.5'"),
        ("1e30", "out of int64 range"),
        ("9" * 400, "out of int64 range"),
        ("1421001028000.5", "looks like milliseconds"),
        ("", "not an integer"),
        ("1,5", "not an integer"),
    ],
)
def test_bad_timestamps(tmp_path: Path, time: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, HEAD + f"a\tb\t1\t{time}\n")
    assert (caught.value.line, caught.value.column) == (2, "timestamp")
    assert words in caught.value.reason


def test_tokens_are_hashed_unless_they_are_integers_by_option(tmp_path: Path) -> None:
    text = HEAD + 'a\t7\t1\t1\na\t"B0 x"\t1\t1\n'
    assert read(tmp_path, text).table.item_ids.tolist() == [hash_item("7"), hash_item('"B0 x"')]
    assert read(tmp_path, HEAD + "a\t7\t1\t1\n", item_ids="int").table.item_ids.tolist() == [7]
    with pytest.raises(DataError, match="not an integer"):
        read(tmp_path, text, item_ids="int")


def test_likes_and_action_columns(tmp_path: Path) -> None:
    text = HEAD.replace("\n", "\tbuy:float\n") + "a\tb\t3.5\t1\t1.0\na\tb\t2\t2\t0\na\tb\t-1e3\t3\t1\n"
    table = read(tmp_path, text, like_from=3.5, action_columns=("buy",)).table
    assert table.action_names == ("engage", "like", "buy")
    assert table.actions.tolist() == [0b111, 0b001, 0b101]
    assert read(tmp_path, text).table.actions.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match=r"not a flag: '3\.5' must be 0 or 1"):
        read(tmp_path, text, action_columns=("rating",))
    with pytest.raises(DataError, match="column 'rating': not a number: 'x'"):
        read(tmp_path, HEAD + "a\tb\tx\t1\n", like_from=1)


def test_other_names_and_order(tmp_path: Path) -> None:
    text = "t:float\tq:float_seq\tsku:token\tuid:token\n9\t1 2\tb\ta\n"
    table = read(tmp_path, text, user_column="uid", item_column="sku", time_column="t").table
    assert (list(table.users), table.timestamps.tolist()) == (["a"], [9])


@pytest.mark.parametrize(
    ("header", "column", "words"),
    [
        ("user_id\titem_id\ttimestamp\n", "", "'user_id' in the header is not name:type"),
        ("user_id:token\titem_id:str\ttimestamp:float\n", "item_id", "'item_id:str' in the header is not"),
        ("user_id:token,item_id:token,timestamp:float\n", "user_id", "missing column"),
        ("user_id:token\titem_id:token\n", "timestamp", "missing column; the header has 'user_id'"),
        ("user_id:token\titem_id:token_seq\ttimestamp:float\n", "item_id", "token_seq holds many values"),
        ("user_id:token\tuser_id:token\ttimestamp:float\n", "user_id", "more than once"),
        ("\n", "user_id", "missing column"),
    ],
)
def test_bad_headers(tmp_path: Path, header: str, column: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, header + "a\tb\t1\n", on_error="skip")
    assert caught.value.line == 1
    assert words in str(caught.value)
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"like_from": float("nan")}, "like_from: nan must be a finite number"),
        ({"like_from": 1.0, "action_columns": ("rating",)}, "'rating' is asked for twice"),
        ({"action_columns": ("engage",)}, "'engage' is bit 0"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RecBoleReader(**options)  # type: ignore[arg-type]
