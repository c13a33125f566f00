"""Traces from files: our own format, logs of events, datasets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import write_events
from relaygr.sim.cache.events import Visits, requests_of
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.reader import Format, read_trace
from relaygr.sim.cache.requests import read_requests, write_requests
from relaygr.sim.cache.trace import Trace

HEADER = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,long_view,play_time_ms,duration_ms,is_rand,tab"
)


def rows(trace: Trace) -> list[tuple[int, int, int, int]]:
    columns = (trace.time_ms, trace.user, trace.length, trace.same)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def lines(file: Path, *requests: object) -> Path:
    file.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in requests))
    return file


def kuairand(file: Path, *events: tuple[int, int, int]) -> Path:
    """(user, video, time)."""
    body = (f"{user},{video},20220421,400,{time},1,0,0,10,20,0,1" for user, video, time in events)
    return lines(file, HEADER, *body)


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
def test_a_written_trace_is_read_again(tmp_path: Path, name: str) -> None:
    made = generate(TraceSpec(users=80, edits=0.2, slide=0.25, max_length=1200, scan=0.2))
    assert (made.same[~made.first] == 0).any()
    write_requests(tmp_path / "new" / name, made)
    read = read_trace([tmp_path / "new" / name], "auto", Visits())
    # Users are counted as they come.
    _, first = np.unique(made.user, return_index=True)
    renamed = np.argsort(np.argsort(first))[made.user]
    assert rows(read) == [(t, who, *rest) for (t, _, *rest), who in zip(rows(made), renamed, strict=True)]
    assert (read.users, read.footprint_tokens) == (made.users, made.footprint_tokens)
    write_requests(tmp_path / name, made)
    assert (tmp_path / name).read_bytes() == (tmp_path / "new" / name).read_bytes()


def test_requests_by_length(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "r.jsonl",
        {"t_ms": 20, "tenant": "a", "user": "u", "length": 50},
        {"t_ms": 10, "tenant": "a", "user": "u", "length": 40},
        "",
        {"t_ms": 20, "tenant": "b", "user": "u", "length": 7},
        {"t_ms": 30, "tenant": "a", "user": "u", "length": 45},
        {"t_ms": 40, "tenant": "a", "user": "u", "length": 60},
        {"t_ms": 50, "tenant": "a", "user": "u", "length": 60, "same": 10},
        {"t_ms": 60, "tenant": "a", "user": "u", "length": 60},
        {"t_ms": 70, "user": 9, "length": 0},
        {"t_ms": 80, "user": "9", "tenant": "default", "length": 3},
    )
    assert rows(read_requests(file)) == [
        (10, 0, 40, 0), (20, 0, 50, 40), (20, 1, 7, 0), (30, 0, 45, 45), (40, 0, 60, 50), (50, 0, 60, 10),
        (60, 0, 60, 60), (70, 2, 0, 0), (80, 2, 3, 0),
    ]  # fmt: skip


def test_requests_by_events_tell_what_changed(tmp_path: Path) -> None:
    big = 2**63 - 1
    file = lines(
        tmp_path / "r.jsonl",
        {"t_ms": 1, "user": 1, "events": [1, 2, big]},
        {"t_ms": 2, "user": 1, "events": [1, 2, big, 4]},
        {"t_ms": 3, "user": 1, "events": [1, 2]},
        {"t_ms": 4, "user": 1, "events": [1, 2, big, 4, 5]},
        {"t_ms": 5, "user": 1, "events": [1, 3, big, 4, 5]},
        {"t_ms": 6, "user": 1, "events": [3, big, 4, 5]},
        {"t_ms": 7, "user": 2, "events": []},
    )
    assert [(length, same) for _, _, length, same in rows(read_requests(file))] == [
        (3, 0), (4, 3), (2, 2), (5, 4), (5, 1), (4, 0), (0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ('{"t_ms": 1, "user": 1}', "length", "either this or events must be given"),
        ('{"t_ms": 1, "user": 1, "length": 1, "events": [1]}', "length", "either"),
        ('{"t_ms": 1, "user": 1, "length": -1}', "length", "-1 must be in [0, 1073741824]"),
        ('{"t_ms": 1, "user": 1, "length": 5, "same": 1}', "same", "1 must be in [0, 0]"),
        ('{"t_ms": -1, "user": 1, "length": 5}', "t_ms", "-1 must be in [0, 100000000000000)"),
        ('{"t_ms": 1, "user": 1.5, "length": 5}', "", "user"),
        ('{"t_ms": 1, "user": 1, "size": 5}', "", "size"),
        ('{"user": 1, "length": 5}', "", "t_ms"),
        ('{"t_ms": 1,', "", "truncated"),
        ('{"t_ms": 1, "user": "\xff", "length": 5}'.encode("latin-1"), "", "UTF-8"),
    ],
)
def test_bad_requests(tmp_path: Path, line: str | bytes, column: str, words: str) -> None:
    file = tmp_path / "r.jsonl"
    raw = line if isinstance(line, bytes) else line.encode()
    file.write_bytes(b'{"t_ms": 5, "user": 7, "length": 1}\n\n' + raw + b"\n")
    with pytest.raises(DataError) as caught:
        read_requests(file)
    assert (caught.value.line, caught.value.column) == (3, column)
    assert words in caught.value.reason


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match="there are no requests"):
        read_requests(tmp_path / "empty")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b'{"t_ms": 5, "user": 7, "length": 1}\n' * 1000)[:60])
    bad = tmp_path / "bad.gz"
    bad.write_bytes(b"\x1f\x8b" + b"x" * 50)
    for file in (tmp_path / "none", cut, bad):
        for form in ("auto", "requests"):
            with pytest.raises(DataError, match=file.name):
                read_trace([file], form, Visits())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--trace: no file is given"):
        read_trace([], "auto", Visits())
    with pytest.raises(ConfigError, match="2 are given, a trace of requests is one"):
        read_trace([cut, bad], "requests", Visits())
    with pytest.raises(ConfigError, match=r"--out: .* cannot be written"):
        write_requests(tmp_path / "empty" / "below", generate(TraceSpec(users=5)))


def test_kuairand_logs(tmp_path: Path) -> None:
    """A request before each tenth event, and on each return after more than half an hour."""
    minute = 60_000
    start = 1_650_485_801_301
    events = [(7, at, start + at * minute) for at in range(25)]
    # Exactly 30 minutes are no gap, one millisecond more is; the count begins anew at it.
    events += [(7, 25, start + 54 * minute), (7, 26, start + 84 * minute + 1)]
    events += [(7, 27 + at, start + (85 + at) * minute) for at in range(12)]
    one = kuairand(tmp_path / "log_standard.csv", *events[::-1])
    two = kuairand(tmp_path / "log_random.csv", (8, 1, start), (8, 2, start + 31 * minute), (9, 1, start))
    trace = read_trace([one, two], "auto", Visits())
    who = dict(zip((7, 8), dict.fromkeys(trace.user.tolist()), strict=False))
    assert [(t - start, length) for t, user, length, _ in rows(trace) if user == who[7]] == [
        (10 * minute, 10), (20 * minute, 20), (84 * minute + 1, 26), (94 * minute, 36),
    ]  # fmt: skip
    assert [(t - start, length) for t, user, length, _ in rows(trace) if user != who[7]] == [(31 * minute, 1)]
    assert trace.users == 2  # one event alone is no request
    assert trace.name == "log_standard.csv, log_random.csv"
    assert trace.same.tolist() == [0, 10, 0, 20, 26]


def test_a_request_an_event_and_a_window(tmp_path: Path) -> None:
    file = kuairand(tmp_path / "log.csv", *((1, at, 1000 * at) for at in range(14)))
    visits = Visits(events_per_request=1, max_length=8, slide=0.5)
    assert [(length, same) for _, _, length, same in rows(read_trace([file], "kuairand", visits))] == [
        (1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (8, 7),
        (5, 0), (6, 5), (7, 6), (8, 7), (5, 0),
    ]  # fmt: skip


@given(
    events=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=60),
    every=st.integers(1, 5), gap=st.integers(1, 12),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_events_one_by_one(events: list[tuple[int, int]], every: int, gap: int) -> None:
    minutes = np.array([time for _, time in events], np.int64)
    user = np.array([who for who, _ in events], np.int64)
    visits = Visits(events_per_request=every, gap_min=float(gap))
    expected = []
    for who in range(4):
        times = sorted(time for one, time in events if one == who)
        since = last = 0
        for at, time in enumerate(times):
            if at and (time - times[at - 1] > gap or since == every):
                expected.append((60_000 * time, at, last))
                since, last = 0, at
            since += 1
    if not expected:
        with pytest.raises(DataError, match="no request in"):
            requests_of("log", user, 60_000 * minutes, visits)
        return
    trace = requests_of("log", user, 60_000 * minutes, visits)
    assert sorted((t, length, same) for t, _, length, same in rows(trace)) == sorted(expected)
    assert trace.time_ms.tolist() == sorted(trace.time_ms.tolist())


def test_the_same_events_in_every_form(tmp_path: Path) -> None:
    table = synthesize(SynthSpec(users=12, mean_length=60, items=64, clusters=4))
    write_events(tmp_path / "set", table, name="a", source="b", licence="c")
    order = np.argsort(table.timestamps, kind="stable")
    events = [(int(table.user_index[at]), int(table.item_ids[at]), int(table.timestamps[at])) for at in order]
    csv = lines(tmp_path / "e.csv", "user_id,item_id,timestamp", *(",".join(map(str, one)) for one in events))
    log = kuairand(tmp_path / "log.csv", *((user, item, 1000 * at) for user, item, at in events))
    found = {
        form: read_trace([path], "auto", Visits())
        for form, path in (("dataset", tmp_path / "set"), ("csv", csv), ("kuairand", log))
    }
    shapes = {
        form: sorted((t, length, same) for t, _, length, same in rows(one)) for form, one in found.items()
    }
    assert shapes["dataset"] == shapes["csv"] == shapes["kuairand"]
    assert len(found["csv"]) > 50


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        ("kuairand", f"{HEADER}\n1,2,3,4,5.5,1,0,0,1,1,0,1\n", "column 'time_ms': not an integer"),
        ("kuairand", f"{HEADER}\n1,2,3,4,-5,1,0,0,1,1,0,1\n", "column 'time_ms': negative timestamp"),
        ("kuairand", f"{HEADER}\n1,2,3,4,{10**14},1,0,0,1,1,0,1\n", "must be in [0, 100000000000000)"),
        ("kuairand", "user_id,time_ms\n", "column 'video_id': missing column"),
        ("auto", "user_id,item_id,timestamp\n1,2,3\n", "no request in 1 events"),
        ("auto", "userId,movieId,timestamp\n1,2,3\n", "column 'user_id': missing column"),
        ("dataset", "", "Not a directory"),
    ],
)
def test_bad_logs(tmp_path: Path, form: Format, text: str, words: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_trace([file], form, Visits())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("events_per_request", 0),
        ("gap_min", 0.0),
        ("max_length", 0),
        ("slide", 1.5),
        ("gap_min", float("nan")),
    ],
)
def test_bad_visits(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"visits\.{field}: .* must be in "):
        Visits(**{field: value})  # type: ignore[arg-type]
