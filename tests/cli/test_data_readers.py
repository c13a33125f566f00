"""`relaygr data movielens`, `from-git` and so on: options reach the readers, terms are printed and kept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from relaygr.cli.main import main
from relaygr.data.dataset import Events, open_events
from relaygr.data.readers.fields import hash_item

KUAIRAND = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,"
    "long_view,play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
)


def run(*arguments: object) -> int:
    try:
        main(["data", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def made(tmp_path: Path, *arguments: object) -> Events:
    assert run(*arguments, "--out", tmp_path / "d") == 0
    return open_events(tmp_path / "d")


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_movielens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "u.data"
    file.write_text("196\t242\t3\t881250949\n186\t302\t2\t891717742\nx\t1\t9\t1\n")
    events = made(tmp_path, "movielens", file, "--like-from", 3, "--on-error", "skip")
    printed = one_line(capsys.readouterr().out)
    assert "rating out of range" in printed
    assert "rows left out" in printed
    assert f"Source: {events.meta.source}" in printed
    assert f"Licence: {events.meta.licence}" in printed
    assert "https://doi.org/10.1145/2827872" in events.meta.source
    assert (events.meta.name, events.actions.tolist()) == ("movielens", [0b11, 0b01])


def test_kuairand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"log_{part}.csv" for part in range(2)]
    for part, file in enumerate(files):
        file.write_text(f"{KUAIRAND}\n1,{part},20220408,1600,{part}999,1,0,0,0,0,0,1,5,9,0,0,0,0,1\n")
    events = made(tmp_path, "kuairand", *files, "--name", "k")
    printed = one_line(capsys.readouterr().out)
    assert f"Licence: {events.meta.licence}" in printed
    assert "CC BY-SA 4.0" in events.meta.licence
    assert "10.1145/3511808.3557624" in events.meta.source
    assert (events.meta.name, events.timestamps.tolist()) == ("k", [0, 1])


def test_recbole(tmp_path: Path) -> None:
    file = tmp_path / "ml.inter"
    file.write_text("u:token\ti:token\tr:float\tt:float\tbuy:float\na\t7\t4.5\t1999.5\t1\n")
    names = ("--user-column", "u", "--item-column", "i", "--time-column", "t", "--rating-column", "r")
    options = ("--like-from", 4, "--action-column", "buy", "--time-unit", "ms", "--item-ids", "int")
    events = made(tmp_path, "recbole", file, *names, *options, "--licence", "mine", "--source", "here")
    assert (events.item_ids.tolist(), events.timestamps.tolist()) == ([7], [1])
    assert (events.meta.actions, events.actions.tolist()) == (("engage", "like", "buy"), [0b111])
    assert (events.meta.name, events.meta.licence, events.meta.source) == ("ml", "mine", "here")


def test_jsonl(tmp_path: Path) -> None:
    files = [tmp_path / f"part-{part}.jsonl" for part in range(2)]
    for part, file in enumerate(files):
        file.write_text(json.dumps({"u": part, "i": "x", "t": 5000, "like": True}))
    names = ("--user-column", "u", "--item-column", "i", "--time-column", "t", "--action-column", "like")
    events = made(tmp_path, "jsonl", *files, *names, "--item-ids", "hash", "--time-unit", "ms")
    assert events.item_ids.tolist() == [hash_item("x")] * 2
    assert (events.timestamps.tolist(), events.actions.tolist()) == ([5, 5], [3, 3])
    assert (events.meta.name, events.meta.source) == ("part-0", "part-0.jsonl, part-1.jsonl")


def test_parquet(tmp_path: Path) -> None:
    table = pyarrow.table({"user_id": ["a", "b"], "item_id": [1, None], "timestamp": [2, 3]})
    parquet.write_table(table, tmp_path / "e.parquet")
    assert run("parquet", tmp_path / "e.parquet", "--out", tmp_path / "d") == 2
    assert made(tmp_path, "parquet", tmp_path / "e.parquet", "--on-error", "skip").n_events == 1


def test_from_git(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = b""
    for number, (author, paths) in enumerate(((b"Ann", 1), (b"A bot", 1), (b"Bob", 3), (b"Ann", 2))):
        files = b"".join(b"M 644 inline f%d\ndata 1\n%d\n" % (path, number) for path in range(paths))
        stream += b"commit refs/heads/main\ncommitter %s <a@b> %d +0000\ndata 0\n%s\n" % (
            author,
            number,
            files,
        )
    git = ["git", "-C", str(tmp_path / "my.repo")]
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", tmp_path / "my.repo"], check=True)
    subprocess.run([*git, "fast-import", "--quiet"], input=stream, check=True)
    events = made(tmp_path, "from-git", tmp_path / "my.repo", "--salt", "s", "--max-paths", 2)
    printed = one_line(capsys.readouterr().out)
    assert "commits left out" in printed
    assert "author is a bot" in printed
    assert "commit of too many paths" in printed
    assert events.timestamps.tolist() == [0, 3, 3]
    assert events.meta.name == "my.repo"
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, check=True, text=True
    ).stdout.strip()
    assert commit in events.meta.source
    again = made(
        tmp_path, "from-git", tmp_path / "my.repo", "--salt", "s", "--rev", "main~3", "--licence", "MIT"
    )
    assert (again.n_events, again.meta.licence) == (1, "MIT")
    assert again.users[0] == events.users[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["movielens", "--out", "d"], "files: no file is given"),
        (["movielens", "x", "--like-from", "9", "--out", "d"], "like_from: 9.0 must be in [0.5, 5]"),
        (["recbole", "none", "--out", "d"], "none:0: column '': No such file"),
        (["jsonl", "none", "--user-column", "timestamp", "--out", "d"], "'timestamp' is asked for twice"),
        (["from-git", ".", "--out", "d"], ".:0: column '': is not the top of a git repository"),
        (["from-git", ".", "--salt", "", "--out", "d"], "salt: 0 bytes, limit 1 to 256"),
        (["from-git", ".", "--rev=--all", "--out", "d"], "rev: '--all' cannot name a commit"),
        (["kuairand", "afile", "--out", "afile"], "out: "),
    ],
)
def test_errors_are_one_line_and_status_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("x")
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert not (tmp_path / "d").exists()
