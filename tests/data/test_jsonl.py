"""JSON lines: kinds of values, and everything a line can hold that is no event."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import DataError
from relaygr.data.readers.fields import hash_item
from relaygr.data.readers.interface import Read
from relaygr.data.readers.jsonl import JsonlReader

GOOD = '{"user_id": "a", "item_id": 1, "timestamp": 2}'


def read(folder: Path, text: str, **options: object) -> Read:
    file = folder / "events.jsonl"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    return JsonlReader(**options).read(file)  # type: ignore[arg-type]


def line(user: str = '"a"', item: str = "1", time: str = "2", more: str = "") -> str:
    return f'{{"user_id": {user}, "item_id": {item}, "timestamp": {time}{more}}}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  {GOOD}  ",
        line(item='"1"', time='"2"'),
        line(time="2.0"),
        line(time="2e0"),
        line(more=', "other": {"deep": [1, {"x": null}]}, "user": 5'),
        '{"timestamp":2,"item_id":1,"user_id":"\\u0061"}',
    ],
)
def test_forms_of_one_event(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, text + "\n").table
    assert (list(table.users), table.item_ids.tolist(), table.timestamps.tolist()) == (["a"], [1], [2])


def test_a_number_and_its_text_are_one_id(tmp_path: Path) -> None:
    table = read(tmp_path, line(user="7", item="9") + "\n" + line(user='"7"', item='"9"')).table
    assert (list(table.users), table.item_ids.tolist()) == (["7"], [9, 9])
    hashed = read(tmp_path, line(item="9") + "\n" + line(item='"é"'), item_ids="hash").table
    assert hashed.item_ids.tolist() == [hash_item("9"), hash_item("é")]


def test_names_flags_and_milliseconds(tmp_path: Path) -> None:
    text = '{"u": 1, "i": -5, "t": 1421001028999, "like": true, "save": 0, "x y": "1"}'
    table = read(
        tmp_path,
        text,
        user_column="u",
        item_column="i",
        time_column="t",
        action_columns=("like", "save", "x y"),
        time_unit="ms",
    ).table
    assert table.action_names == ("engage", "like", "save", "x y")
    assert (table.actions.tolist(), table.timestamps.tolist()) == ([0b1011], [1421001028])


@pytest.mark.parametrize(
    ("bad", "column", "reason", "words"),
    [
        ("{", "", "malformed JSON", "at character"),
        (GOOD[:-1], "", "malformed JSON", ""),
        (GOOD + GOOD, "", "malformed JSON", "Extra data"),
        ("{'user_id': 1}", "", "malformed JSON", ""),
        (line(time="NaN"), "", "malformed JSON", "NaN is no JSON number"),
        (line(more=', "other": -Infinity'), "", "malformed JSON", "-Infinity"),
        (line(time="01"), "", "malformed JSON", ""),
        ("[" * 100_000, "", "malformed JSON", "nested too deep"),
        (line(more=', "x": ' + '{"y":' * 50_000), "", "malformed JSON", "nested too deep"),
        ("[1, 2, 3]", "", "wrong kind of value", "an array, expected an object"),
        ("null", "", "wrong kind of value", "null, expected an object"),
        ("7", "", "wrong kind of value", "a number, expected an object"),
        (line(more=', "item_id": 1'), "item_id", "field stands twice", "'item_id'"),
        (line(more=', "other": 1, "other": 1'), "other", "field stands twice", "'other'"),
        ('{"user_id": "a", "timestamp": 2}', "item_id", "missing field", ""),
        (line(user="null"), "user_id", "null", ""),
        (line(time="null"), "timestamp", "null", ""),
        (line(item='{"id": 1}'), "item_id", "wrong kind of value", "an object"),
        (line(user='["a"]'), "user_id", "wrong kind of value", "an array"),
        (line(user="true"), "user_id", "wrong kind of value", "true or false"),
        (line(time="true"), "timestamp", "wrong kind of value", "true or false"),
        (line(user="1.0"), "user_id", "wrong kind of value", "1.0, expected a string or a whole number"),
        (line(item="1e3"), "item_id", "wrong kind of value", "1e3"),
        (line(item="9" * 5000), "item_id", "out of int64 range", ""),
        (line(item="-9223372036854775809"), "item_id", "out of int64 range", ""),
        (line(time="1e400"), "timestamp", "out of int64 range", ""),
        (line(time="2.5"), "timestamp", "not an integer", "has a fraction"),
        (line(time="-2"), "timestamp", "negative timestamp", ""),
        (line(time='"2026-01-01"'), "timestamp", "not an integer", ""),
        (line(time="1421001028000"), "timestamp", "timestamp in a finer unit", "use --time-unit ms"),
        (line(user='""'), "user_id", "empty user", ""),
        (line(user='"a\\u0000"'), "user_id", "contains NUL", ""),
        (line(user='"\\ud800"'), "user_id", "bad UTF-8", ""),
        (line(user='"\udcff"'), "user_id", "bad UTF-8", r"b'\xff'"),
        (line(user='"a\tb"'), "", "malformed JSON", "control character"),
        (line(user=f'"{"x" * 257}"'), "user_id", "user id too long", "257 bytes, limit 256"),
    ],
)
def test_bad_lines(tmp_path: Path, bad: str, column: str, reason: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, f"{GOOD}\n{bad}\n{GOOD}\n")
    assert (caught.value.line, caught.value.column) == (2, column)
    assert caught.value.reason.startswith(reason)
    assert words in caught.value.reason
    assert len(str(caught.value)) < 1000
    found = read(tmp_path, f"{GOOD}\n{bad}\n{GOOD}\n", on_error="skip")
    assert len(found.table.item_ids) == 2
    assert [(skipped.reason.value, skipped.count) for skipped in found.skipped] == [(reason, 1)]


@pytest.mark.parametrize("flag", ['"yes"', "2", "1.0", "null", "[]"])
def test_bad_flags(tmp_path: Path, flag: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, line(more=f', "like": {flag}'), action_columns=("like",))
    assert caught.value.column == "like"


def test_an_empty_file_holds_no_events(tmp_path: Path) -> None:
    assert len(read(tmp_path, "").table.item_ids) == 0


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.integers(0, len(GOOD)))
def test_any_text_gives_events_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, place: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.jsonl"
    file.write_bytes((GOOD[:place] + text + GOOD[place:]).encode("utf-8", errors="surrogatepass"))
    try:
        table = JsonlReader(on_error="skip").read(file).table
    except DataError:
        return
    assert len(table.item_ids) == len(table.actions)
