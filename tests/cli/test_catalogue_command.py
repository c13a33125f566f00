"""`relaygr catalogue`: from a file to a folder, and what is printed about it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from relaygr.cli.main import main
from relaygr.generation.catalogue.artefact import open_catalogue
from relaygr.generation.catalogue.tokens import TokenSpec

LINES = """
{"item_id": 9007199254740993, "token_ids": [1, 2], "metadata": {"fresh": true}}
{"item_id": 5, "token_ids": [1, 2], "metadata": {}}
{"item_id": 5, "token_ids": [1, 2], "metadata": {}}
{"item_id": 6, "token_ids": [0, 2]}
{"item_id": 7, "token_ids": [0, 1], "servable": false}
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text(LINES)
    return tmp_path


def run(*arguments: object) -> int:
    try:
        main(["catalogue", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_build_and_describe(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", "a.jsonl", "--out", "c", "--sizes", 4, 8, "--flags", "fresh") == 0
    built = capsys.readouterr().out
    assert "5 rows, 1 of them repeated" in built
    assert run("describe", "c", "--json", "c.json") == 0
    described = capsys.readouterr().out
    for words in (
        "2 semantic ids, 3 items (whole numbers), 1 ids of several items, at most 2; 1 items only as history",
        "filter fresh: 1 of 3 items pass",
        open_catalogue("c").label,
    ):
        assert words in built
        assert words in described
    report = json.loads((work / "c.json").read_text())
    assert [(one["size"], one["nodes"], one["max_children"]) for one in report["levels"]] == [
        (4, 2, 2),
        (8, 2, 1),
    ]
    index = open_catalogue("c").index
    assert index.item_ids(1) == [5, 9007199254740993]
    assert report["nbytes"] == index.nbytes


def test_model_tokens(work: Path) -> None:
    (work / "m.json").write_text('{"a": [100, 205], "b": [101, 200]}')
    assert run("build", "m.json", "--out", "c", "--first-tokens", 100, 200) == 0
    catalogue = open_catalogue("c")
    assert catalogue.index.item_ids(0) == ["a"]
    assert catalogue.header.tokens == TokenSpec(bases=(100, 200))
    tokens = '{"tables": [[7, 3], [1, 2, 9, 8, 10, 11]]}'
    assert run("build", "m.json", "--out", "c", "--first-tokens", 100, 200, "--tokens", tokens) == 0
    assert open_catalogue("c").header.tokens == TokenSpec(tables=((7, 3), (1, 2, 9, 8, 10, 11)))


def test_flat_files_and_age(work: Path) -> None:
    (work / "a.bin").write_bytes(struct.pack("<q2i", 5, 1, 2))
    assert run("build", "a.bin", "--out", "c", "--form", "flat", "--levels", 2, "--as-of", 12.5) == 0
    catalogue = open_catalogue("c")
    assert (catalogue.header.as_of_s, catalogue.header.source) == (12.5, "a.bin")
    assert catalogue.index.item_ids(0) == [5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("build", "a.jsonl", "--out", "a.jsonl"), "--out: {work}/a.jsonl is a file"),
        (("build", "a.jsonl", "--out", "{work}"), "holds 'a.jsonl', which is no part of a catalogue"),
        (
            ("build", "missing.jsonl", "--out", "c"),
            "missing.jsonl: cannot be read: No such file or directory",
        ),
        (("build", "a.txt", "--out", "c"), "form: a.txt ends in none of"),
        (("build", "a.jsonl", "--out", "c", "--sizes", "4"), "a.jsonl:2: codes: 2 codes, expected 1"),
        (
            ("build", "a.jsonl", "--out", "c", "--sizes", "4", "2"),
            "a.jsonl:2: codes: level 2: code 2, limit 1",
        ),
        (("build", "a.jsonl", "--out", "c", "--tokens", "{"), "--tokens: Input data was truncated"),
        (("build", "a.jsonl", "--out", "c", "--tokens", "{}"), "sid_token_map: nothing, expected bases"),
        (
            ("build", "a.jsonl", "--out", "c", "--tokens", '{"bases": [0]}'),
            "sid_token_map.bases: 1 levels, the catalogue has 2",
        ),
        (("build", "a.jsonl", "--out", "c", "--as-of", "1e12"), "--as-of: 1e+12, limit 0 to now"),
        (("build", "a.jsonl", "--out", "c", "--as-of", "nan"), "--as-of: nan, limit 0 to now"),
        (("describe", "{work}"), "catalog.json: cannot be read: No such file or directory"),
        (("describe", "c", "--json", "{work}"), "--json: {work} is a folder"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    work: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(one.replace("{work}", str(work)) for one in arguments)) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert words.replace("{work}", str(work)) in told
    assert [one.name for one in work.iterdir()] == ["a.jsonl"]
