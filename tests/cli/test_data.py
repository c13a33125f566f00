"""`relaygr data`: the commands make datasets, print tables, and fail with one line and status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaygr.cli.main import main
from relaygr.data.dataset import open_events


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def events_csv(tmp_path: Path) -> Path:
    file = tmp_path / "events.csv"
    file.write_text("who,what,when,like,save\na,x,2000,1,0\nb,y,1000,0,1\nb,z,oops,0,1\n", encoding="utf-8")
    return file


COLUMNS = ("--user-column", "who", "--item-column", "what", "--time-column", "when")


def test_csv_with_every_option(events_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*COLUMNS, "--action-column", "like", "--action-column", "save", "--time-unit", "ms"]
    options += [
        "--item-ids",
        "hash",
        "--on-error",
        "skip",
        "--name",
        "[n]",
        "--source",
        "s",
        "--licence",
        "l",
    ]
    assert run("data", "csv", *options, events_csv, "--out", tmp_path / "d") == 0
    printed = capsys.readouterr().out
    assert "events per session" in printed
    assert "not an integer" in printed
    assert "[n] in" in printed
    events = open_events(tmp_path / "d")
    assert (events.n_users, events.n_events) == (2, 2)
    assert events.meta.actions == ("engage", "like", "save")
    assert (events.meta.name, events.meta.source, events.meta.licence) == ("[n]", "s", "l")
    assert events.timestamps.tolist() == [2, 1]
    assert events.actions.tolist() == [0b011, 0b101]


def test_name_and_source_default_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    file.write_text("user_id,item_id,timestamp\na,1,253402300800\n".replace("253402300800", "99999999999"))
    assert run("data", "csv", file, "--out", tmp_path / "d") == 0
    meta = open_events(tmp_path / "d").meta
    assert (meta.name, meta.source, meta.licence) == ("clicks", "clicks.csv", "")


def test_a_bad_row_is_one_line_and_status_2(
    events_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "csv", events_csv, *COLUMNS, "--item-ids", "hash", "--out", tmp_path / "d") == 2
    captured = capsys.readouterr()
    assert f"relaygr: {events_csv}:4: column 'when': not an integer: 'oops'" in captured.err
    assert captured.out == ""
    assert not (tmp_path / "d").exists()


def test_synth_then_describe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--users", 20, "--mean-length", 30, "--items", 200, "--repeat-rate", 0.5, "--seed", 3]
    assert run("data", "synth", "--out", tmp_path / "d", *options) == 0
    made = capsys.readouterr().out
    assert run("data", "describe", tmp_path / "d") == 0
    assert capsys.readouterr().out == made
    events = open_events(tmp_path / "d")
    assert events.n_users == 20
    assert '"repeat_rate":0.5' in events.meta.source


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["describe", "nowhere"], "is nowhere a dataset"),
        (["synth", "--out", "d", "--users", "0"], "synth.users: 0 must be in [1, 10000000]"),
        (["csv", "none.csv", "--out", "d"], "none.csv:0: column '': No such file or directory"),
    ],
)
def test_errors(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("data", *arguments) == 2
    assert words in capsys.readouterr().err
