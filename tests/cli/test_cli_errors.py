"""A wrong option or path is one line and status 2, before any work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.cli import main as main_module
from relaygr.cli.main import main


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("the work began")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("x")
    (tmp_path / "ok.csv").write_text("user_id,item_id,timestamp\na,1,2\n")
    for name in (
        "bench.bench_rank",
        "bench.bench_threads",
        "doctor.examine",
        "demo.run_demo",
        "evaluate.open_ranker",
        "verify.verify",
        "verify.open_events",
        "train.open_events",
        "data_readers.CsvReader.read",
        "data.synthesize",
    ):
        monkeypatch.setattr(f"relaygr.cli.{name}", forbidden)
    return tmp_path


MODEL = ("--model", "m", "--events", "e")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--out", "afile"), "--out: afile is a file"),
        (("demo", "--out", "afile/x"), "--out: afile/x cannot be made: afile is not a folder"),
        (("train", "ranker", "--events", "e", "--out", "afile"), "--out: afile is a file"),
        (("eval", "ranker", *MODEL, "--json", "/"), "--json: / is a folder"),
        (("eval", "ranker", *MODEL, "--json", "afile/x.json"), "--json: afile/x.json cannot be made"),
        (
            ("eval", "ranker", *MODEL, "--negatives", "100000000"),
            "--negatives: 100000000 must be in [1, 65536]",
        ),
        (("eval", "ranker", *MODEL, "--negatives", "0"), "--negatives: 0 must be in [1, 65536]"),
        (("eval", "ranker", *MODEL, "--seed", "-1"), "--seed: -1 must be in [0, "),
        (("verify", *MODEL, "--json", "/"), "--json: / is a folder"),
        (("doctor", "--json", "/"), "--json: / is a folder"),
        (("bench", "rank", "--json", "afile/x.json"), "--json: afile/x.json cannot be made"),
        (("bench", "threads", "--json", "/"), "--json: / is a folder"),
        (("data", "csv", "caf\udce9.csv", "--out", "x"), "argument 3: b'caf\\xe9.csv' is not UTF-8"),
        (("data", "csv", "ok.csv", "--out", "x", "--name", "a\udce9"), "argument 7: b'a\\xe9' is not UTF-8"),
        (("data", "csv", "ok.csv", "--out", "n" * 300), "has 300 bytes, limit 224"),
        (("data", "csv", "ok.csv", "--out", "afile"), "afile is a file"),
        (("data", "synth", "--out", "afile/x"), "afile is not a folder"),
    ],
)
def test_refused_before_the_work(
    work: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("relaygr: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def raiser(error: Exception) -> Callable[..., None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


def test_a_path_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "app", raiser(PermissionError(13, "Permission denied", "/some/where")))
    assert run("doctor") == 2
    assert capsys.readouterr().err == "relaygr: /some/where: Permission denied\n"


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ValueError("bug")])
def test_what_names_no_path_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "app", raiser(error))
    with pytest.raises(type(error)):
        run("doctor")


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=20).filter(lambda raw: b"\0" not in raw))
def test_any_bytes_are_a_file_name_or_refused(raw: bytes) -> None:
    assert run("data", "describe", "--", os.fsdecode(raw)) == 2
