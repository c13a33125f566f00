"""What every reader promises, whatever it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reader_cases import BAD_TIME, CASES, Case, compress

from relaygr.core.errors import ConfigError, DataError, RelayError
from relaygr.data.dataset import open_events
from relaygr.data.readers.history import GitReader
from relaygr.data.readers.interface import Read, Reader
from relaygr.data.readers.registry import READERS
from relaygr.data.write import write_events

EVENTS = [("7", 30, 200), ("5", 10, 100), ("7", 20, 200), ("7", 30, 150), ("6", 10, 0), ("5", 10, 99)]
IDS = [f"{case.command}-{number}" for number, case in enumerate(CASES)]
each_case = pytest.mark.parametrize("case", CASES, ids=IDS)
each_file = pytest.mark.parametrize("case", [case for case in CASES if case.reader is not GitReader])
each_text = pytest.mark.parametrize("case", [case for case in CASES if case.text])


def reader(case: Case, **options: object) -> Reader:
    if case.reader is GitReader:
        options.setdefault("salt", "s")
    return case.reader(**options)


def ranks(values: list[object]) -> list[int]:
    """By order of first appearance, because ids may be hashed."""
    seen: dict[object, int] = {}
    return [seen.setdefault(value, len(seen)) for value in values]


def same(read: Read, events: list[tuple[str, int, int]]) -> bool:
    table = read.table
    return (
        table.user_index.tolist() == ranks([user for user, _, _ in events])
        and ranks(table.item_ids.tolist()) == ranks([item for _, item, _ in events])
        and table.timestamps.tolist() == [time_s for _, _, time_s in events]
        and len(table.users) == len({user for user, _, _ in events})
        and bool(np.all(table.actions & 1))
    )


def test_the_registry_holds_what_is_tested() -> None:
    assert set(READERS.items()) == {(case.command, case.reader) for case in CASES}


@each_case
def test_events_arrive_in_order_and_become_a_dataset(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path, "events", EVENTS)
    read = reader(case).read(path)
    assert same(read, EVENTS)
    assert read.skipped == ()
    assert read.source
    assert str(tmp_path) not in read.source
    write_events(tmp_path / "d", read.table, name="", source=read.source, licence="")
    assert open_events(tmp_path / "d").n_events == len(EVENTS)


@each_case
def test_the_same_input_gives_the_same_events(case: Case, tmp_path: Path) -> None:
    path = str(case.write(tmp_path, "events", EVENTS))
    first, second = (reader(case).read(path).table for _ in range(2))
    assert list(first.users) == list(second.users)
    assert first.item_ids.tolist() == second.item_ids.tolist()
    assert first.action_names == second.action_names


@each_case
def test_progress_ends_with_the_number_of_records(case: Case, tmp_path: Path) -> None:
    seen: list[int] = []
    reader(case).read(case.write(tmp_path, "events", EVENTS), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == len(EVENTS)


@each_case
def test_a_bad_record_is_named_or_costs_itself_only(case: Case, tmp_path: Path) -> None:
    spoilt = [*EVENTS[:2], ("9", 99, BAD_TIME), *EVENTS[2:], ("9", 98, BAD_TIME)]
    path = case.write(tmp_path, "events", spoilt)
    with pytest.raises(DataError) as caught:
        reader(case, on_error="fail").read(path)
    error = caught.value
    assert (error.file, error.line, error.column) == (str(path), case.first_line + 2, case.time_column)
    read = reader(case, on_error="skip").read(path)
    assert same(read, EVENTS)
    assert [skipped.count for skipped in read.skipped] == [2]


@each_case
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_nothing_but_bad_records_is_an_error(case: Case, on_error: str, tmp_path: Path) -> None:
    path = case.write(tmp_path, "events", [("9", 99, BAD_TIME)] * 3)
    with pytest.raises(DataError) as caught:
        reader(case, on_error=on_error).read(path)
    assert caught.value.line == case.first_line


@each_case
def test_no_path_and_no_file(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        reader(case).read()
    with pytest.raises(DataError, match=r"[Nn]o such") as caught:
        reader(case).read(tmp_path / "none")
    assert caught.value.file == str(tmp_path / "none")
    with pytest.raises(DataError):
        reader(case).read(tmp_path)


@each_file
def test_several_files_are_one(case: Case, tmp_path: Path) -> None:
    parts = [case.write(tmp_path, "a", EVENTS[:3]), case.write(tmp_path, "b", EVENTS[3:])]
    assert same(reader(case).read(*parts), EVENTS)
    spoilt = case.write(tmp_path, "c", [*EVENTS, ("9", 1, BAD_TIME)])
    with pytest.raises(DataError) as caught:
        reader(case).read(*parts, spoilt)
    assert (caught.value.file, caught.value.line) == (str(spoilt), case.first_line + len(EVENTS))


@each_text
def test_gzip_and_what_is_wrong_with_it(case: Case, tmp_path: Path) -> None:
    many = [(str(number % 50), number * 7919 % 10_007, number) for number in range(5000)]
    packed = compress(case.write(tmp_path, "events", many))
    assert same(reader(case).read(packed), many)
    packed.write_bytes(packed.read_bytes()[:-100])
    for on_error in ("fail", "skip"):
        with pytest.raises(DataError, match="truncated gzip") as caught:
            reader(case, on_error=on_error).read(packed)
        assert caught.value.line > 0
    packed.write_bytes(packed.read_bytes()[:10] + b"\xff" * 40)
    with pytest.raises(DataError, match="damaged gzip"):
        reader(case).read(packed)


@each_text
def test_forms_of_lines(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path, "events", EVENTS)
    data = path.read_bytes()
    for form in (
        data.rstrip(b"\n"),
        data + b"\n\r\n",
        data.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + data,
    ):
        path.write_bytes(form)
        assert same(reader(case).read(path), EVENTS)


@each_text
@pytest.mark.parametrize("junk", [b"\xff\xfe", b"\x00", b"{", b'"', b"\t\t\t\t", b"", "{}[]::é".encode()])
def test_junk_lines_cost_themselves_only(case: Case, junk: bytes, tmp_path: Path) -> None:
    path = case.write(tmp_path, "events", EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(case.first_line + 1, junk + b"\n")
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError) as caught:
        reader(case).read(path)
    assert caught.value.line == case.first_line + 2
    assert len(str(caught.value)) < 1000
    read = reader(case, on_error="skip").read(path)
    assert same(read, EVENTS)
    assert [skipped.count for skipped in read.skipped] == [1]


@each_text
def test_a_line_without_end_is_refused(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path, "events", EVENTS)
    with path.open("ab") as stream:
        stream.write(b"1" * (1 << 21))
    with pytest.raises(DataError, match="line has more than 1048576 characters") as caught:
        reader(case, on_error="skip").read(path)
    assert caught.value.line == case.first_line + len(EVENTS)


@each_file
def test_any_bytes_are_events_or_a_known_error(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path, "events", EVENTS)
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        spoilt = bytearray(data)
        for place in rng.integers(len(data), size=3):
            spoilt[place] = rng.integers(256)
        path.write_bytes(bytes(spoilt[: rng.integers(len(data))]) if rng.random() < 0.3 else bytes(spoilt))
        try:
            table = reader(case, on_error="skip").read(path).table
        except RelayError:
            continue
        assert len(table.item_ids) == len(table.actions) == len(table.user_index) <= len(EVENTS) + 3
