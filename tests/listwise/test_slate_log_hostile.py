"""Logs that somebody else wrote: what is wrong has a line, a field, a value and a limit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slate_cases import HEADS

from relaygr.core.errors import ConfigError
from relaygr.listwise.log_check import MAX_EARLIER, repeated_key
from relaygr.listwise.log_files import log_files
from relaygr.listwise.slate_log import Feedback, SlateLog, SlateRecord, read_header, read_records

GOOD: dict[str, Any] = {
    "user": "u1",
    "items": [3, 5],
    "outputs": [[0.1, 0.2, 1.0], [0.3, -0.4, 2.0]],
    "asked": 2,
    "consumed": 1,
    "labels": [[1.0, None, 4.0]],
    "log_propensity": [-0.5, -1e-12],
    "candidates": {"items": [3, 5, 8], "outputs": [[0.1, 0.2, 1.0]] * 3},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SlateLog(tmp_path, HEADS)
    return tmp_path


def put(folder: Path, *lines: bytes | dict[str, Any]) -> None:
    text = [json.dumps(one).encode() if isinstance(one, dict) else one for one in lines]
    (folder / "lists-1.jsonl").write_bytes(b"\n".join(text) + b"\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": [[1.5, None, 4.0]]}, "labels[0].like: 1.5 is not within 0..1"),
        ({"labels": [[1.0, -0.1, 4.0]]}, "labels[0].complete: -0.1 is not within 0..1"),
        ({"labels": [[1.0, None, -4.0]]}, "labels[0].watch_s: -4 is not within 0..3.40282e+38"),
        ({"labels": [[1.0, None, 1e300]]}, "labels[0].watch_s: 1e+300 is not within 0..3.40282e+38"),
        ({"log_propensity": [0.5, -1]}, "log_propensity[0]: 0.5 is not within -745..0"),
        ({"log_propensity": [-1, -1e308]}, "log_propensity[1]: -1e+308 is not within -745..0"),
        ({"log_propensity": [-1, -1, -1]}, "log_propensity: 3 numbers, wanted 2"),
        (
            {"outputs": [[0.1, 0.2, 1.0], [0.3, -0.4, -2.0]]},
            "outputs[1].watch_s: -2 is not within 0..3.40282e+38",
        ),
        (
            {"outputs": [[1e39, 0.2, 1.0], [0.3, -0.4, 2.0]]},
            "outputs[0].like: 1e+39 is not within -3.40282e+38..3.40282e+38",
        ),
        (
            {"candidates": None, "items": [3, 2**64]},
            f"items[1]: {2**64} is not within {-(2**63)}..{2**63 - 1}",
        ),
        ({"candidates": None, "items": [3, 10**4000]}, "items[1]: an integer of 13288 bits is not within"),
        ({"items": [3, 3]}, "items[1]: 3 stands at position 0 already, limit 1"),
        ({"asked": 1}, "items: 2 were shown, 1 had been asked for"),
        (
            {"candidates": {"items": [3, 5, 3], "outputs": [[0.1, 0.2, 1.0]] * 3}},
            "candidates.items[2]: 3 stands at position 0 already",
        ),
        (
            {"candidates": {"items": [3, 5], "outputs": [[0.1, 0.2, 1.0], [0.1, 0.2, -1.0]]}},
            "candidates.outputs[1].watch_s: -1 is not within 0..",
        ),
        ({"earlier": list(range(MAX_EARLIER + 1))}, f"earlier: {MAX_EARLIER + 1} items, limit {MAX_EARLIER}"),
        ({"earlier": [2**63]}, "earlier[0]: 9223372036854775808 is not within"),
        ({"earlier_watch": -1.0}, "earlier_watch: -1 is not within 0.."),
        ({"page": 2**200}, "page[0]: an integer of 201 bits is not within 0..1048576"),
        ({"surface": -(2**63) - 1}, "surface[0]: -9223372036854775809 is not within"),
        ({"session": 2**21}, "session[0]: 2097152 is not within 0..1048576"),
        ({"slots": [1, 2**21]}, "slots[1]: 2097152 is not within 0..1048576"),
        ({"slots": [1, 1, 1]}, "slots: 3 numbers, wanted 2..2"),
        ({"user": "u" * 300}, "at `$.user`"),
        ({"generator": "g" * 300}, "at `$.generator`"),
        ({"x" * 5000: 1}, r"characters)"),
    ],
)
def test_what_is_out_of_range_has_line_field_value_and_limit(
    folder: Path, change: dict[str, Any], said: str
) -> None:
    put(folder, GOOD, GOOD | change)
    with pytest.raises(ConfigError) as error:
        list(read_records(folder))
    assert said in str(error.value)
    assert "lists-1.jsonl:2: " in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[1]",
        b"\xff\xfe{\x00}\x00",
        b'{"user": "\xff"}',
        b'{"user": "\\ud800", "items": [1]}',
        b'{"user": NaN}',
        b'{"earlier_watch": 1e999}',
        b'{"labels": ' + b"[" * 100_000,
        b'{"surface": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        gzip.compress(b"{}" * 100, mtime=0)[:40],
    ],
)
def test_what_is_no_record_is_told_by_line(folder: Path, line: bytes) -> None:
    put(folder, GOOD, line)
    with pytest.raises(ConfigError, match=r"lists-1\.jsonl:[23]: "):
        list(read_records(folder))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (b'"consumed": 1', b'"consumed": 0, "consumed": 1', "consumed"),
        (b'"consumed": 1', b'"consum\\u0065d": 0, "consumed": 1', "consumed"),
        (b'{"items": [3, 5, 8]', b'{"items": [9], "items": [3, 5, 8]', "items"),
    ],
)
def test_a_key_that_stands_twice_is_refused(folder: Path, old: bytes, new: bytes, key: str) -> None:
    whole = json.dumps(GOOD).encode()
    assert old in whole
    put(folder, whole.replace(old, new))
    with pytest.raises(ConfigError, match=rf"lists-1\.jsonl:1: '{key}' stands twice"):
        list(read_records(folder))


def test_keys_are_told_from_strings() -> None:
    whole = msgspec.json.encode(
        {"user": 'a"user": {', "request": "}{", "seed": "user", "list": [{"a": 1}, {"a": 2}]}
    )
    assert repeated_key(whole) is None
    assert repeated_key(b'{"a" \n : {"b": 1, "b" : 2}}') == "b"


def test_a_last_line_counts_if_it_is_whole(folder: Path) -> None:
    line = json.dumps(GOOD).encode()
    (folder / "lists-1.jsonl").write_bytes(line + b"\n" + line)
    (folder / "lists-2.jsonl").write_bytes(line + b"\n" + line[:-5])
    (folder / "lists-3.jsonl").write_bytes(b"")
    (folder / "lists-4.jsonl").write_bytes(line + b"\n")
    assert len(list(read_records(folder))) == 4
    (folder / "lists-1.jsonl").write_bytes(line + b"\n{}")
    with pytest.raises(ConfigError, match=r"lists-1\.jsonl:2"):
        list(read_records(folder))


def test_long_lines_and_folders_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, GOOD)
    monkeypatch.setattr("relaygr.listwise.slate_log.LINE_BYTES", 100)
    with pytest.raises(ConfigError, match="more than 100 bytes"):
        list(read_records(folder))
    (path,) = log_files(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        list(read_records(folder))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x1f\x8b\x08",
        b'{"heads": []}',
        b'{"heads": [{"name": ""}]}',
        b'{"heads": [{"name": "a"}, {"name": "a"}]}',
        b'{"heads": [{"name": "a"}], "heads": [{"name": "b"}]}',
        b'{"heads": [{"name": "a", "kind": "both"}]}',
        msgspec.json.encode({"heads": [{"name": f"h{at}"} for at in range(257)]}),
        b" " * (1 << 20) + b"{}",
    ],
)
def test_headers_that_are_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "log.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"log\.json: ") as error:
        read_header(tmp_path)
    assert len(str(error.value)) < 600


def test_feedback_is_checked_as_what_is_read(folder: Path) -> None:
    log = SlateLog(folder, HEADS)
    record = msgspec.convert(GOOD | {"request": "r", "consumed": 0, "labels": []}, SlateRecord)
    log._waiting["r"] = record
    with pytest.raises(ConfigError, match=r"labels\[0\]\.like: 2 is not within 0\.\.1"):
        log.feedback(Feedback(request="r", consumed=1, labels=((2.0, None, 1.0),)))
    assert log.feedback(Feedback(request="r", consumed=1, labels=((1.0, None, 1.0),)))
    assert len(list(read_records(folder))) == 1
