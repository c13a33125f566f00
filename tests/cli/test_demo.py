"""`relaygr demo`: tables, valid JSON, a page that needs nothing else, and the commands that come next."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
import torch

from relaygr.bench import demo_plots
from relaygr.bench.demo_html import demo_html
from relaygr.bench.demo_result import DemoReport
from relaygr.cli.main import main

_VOID = {"meta", "br", "hr"}
_OPEN = {"td", "th", "tr", "li", "p"}  # may stay open


class Page(HTMLParser):
    """Checks nesting and collects what could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "img", "iframe"}:
            self.loads.append(tag)
        self.loads += [
            value for name, value in attrs if name in {"src", "href"} and value and value[0] != "#"
        ]
        if tag not in _VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.stack and self.stack[-1] != tag and self.stack[-1] in _OPEN:
            self.stack.pop()
        assert self.stack, tag
        assert self.stack.pop() == tag


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    options = ["--users", 25, "--mean-length", 60, "--max-length", 200, "--items", 200, "--clusters", 10]
    assert run("data", "synth", "--out", folder / "events", *options) == 0
    return folder


def demo(folder: Path, out: str, *more: object) -> int:
    common = ["demo", "--events", folder / "events", "--out", folder / out, "--requests", 6, "--lead-ms", 5]
    return run(*common, *more)


@pytest.fixture(scope="module")
def report(folder: Path) -> DemoReport:
    assert demo(folder, "out", "--max-steps", 2, "--large-preset", "hstu-tiny", "--large-requests", 2) == 0
    return msgspec.json.decode((folder / "out" / "demo.json").read_bytes(), type=DemoReport)


def test_the_json_holds_the_run(report: DemoReport) -> None:
    assert report.training is not None
    assert (report.training.steps, report.training.reproducible) == (2, True)
    assert report.cascade.lead_ms == 5
    trained, large = report.latency
    assert (trained.weights, large.weights) == ("trained", "random")
    assert len(trained.inline_ms) == len(trained.history_tokens) == 6
    assert [mode.mode for mode in trained.modes] == ["inline", "relay", "relay, returning"]
    assert max(mode.largest_difference for mode in trained.modes) < 1e-5
    assert len(report.quality) == 8


def test_the_page_is_whole_and_loads_nothing(folder: Path, report: DemoReport) -> None:
    text = (folder / "out" / "demo.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.stack == []
    assert page.loads == []
    assert "url(http" not in text
    assert "positives injected" in text
    assert text.count("<svg") == (5 if demo_plots.available() else 0)


def test_the_page_says_so_without_matplotlib(report: DemoReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_plots, "available", lambda: False)
    page = demo_html(msgspec.structs.replace(report, command="relaygr demo --out '<b>'"))
    assert "relaygr[plots]" in page
    assert "<svg" not in page
    assert "&lt;b&gt;" in page


def test_a_given_model_is_not_trained_and_gives_equal_quality(
    folder: Path, report: DemoReport, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(folder, "again", "--model", folder / "out" / "model", "--large-preset", "") == 0
    printed = capsys.readouterr().out
    assert "relaygr data csv" in printed
    assert f"relaygr verify --model {folder / 'out' / 'model'}" in printed
    again = msgspec.json.decode((folder / "again" / "demo.json").read_bytes(), type=DemoReport)
    assert again.training is None
    assert len(again.latency) == 1
    assert again.latency[0].weights == "given"
    assert again.quality == report.quality
    assert again.latency[0].history_tokens == report.latency[0].history_tokens


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty commits of three people on twenty files, as small as a young project."""
    stream = b""
    for number in range(60):
        files = b"".join(
            b"M 644 inline f%d\ndata 2\n%02d\n" % ((number * step) % 20, number) for step in (1, 3, 7)
        )
        who = (b"Ann <a@b>", b"Bob <b@b>", b"Cid <c@b>")[number // 7 % 3]
        stream += b"commit refs/heads/main\ncommitter %s %d +0000\ndata 0\n%s\n" % (who, number * 3600, files)
    path = tmp_path_factory.mktemp("git") / "project"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", path], check=True)
    subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input=stream, check=True)
    return path


def test_a_repository_is_read_trained_on_and_replayed(repository: Path, tmp_path: Path) -> None:
    options = ("--max-steps", 2, "--requests", 4, "--lead-ms", 1, "--large-preset", "")
    assert run("demo", "--git", repository, "--out", tmp_path, *options) == 0
    report = msgspec.json.decode((tmp_path / "demo.json").read_bytes(), type=DemoReport)
    assert (report.data.name, report.data.users, report.data.items) == ("project", 3, 20)
    assert "git history, commit " in report.data.source
    assert max(mode.largest_difference for mode in report.latency[0].modes) < 1e-5
    model = ("--model", tmp_path / "model", "--events", tmp_path / "events")
    assert run("verify", *model, "--users", 2) == 0
    assert run("eval", "ranker", *model) == 0


def test_a_repository_and_events_are_one_too_many(
    folder: Path, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("demo", "--git", repository, "--events", folder / "events", "--out", tmp_path) == 2
    assert "are both given; take one" in capsys.readouterr().err


def test_an_empty_repository_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "empty"], check=True)
    assert run("demo", "--git", tmp_path / "empty", "--out", tmp_path / "out") == 2
    assert "names no commit; an empty repository has none" in capsys.readouterr().err


def test_bad_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo(folder, "bad", "--preset", "hstu-tinny") == 2
    assert "did you mean hstu-tiny" in capsys.readouterr().err
    assert run("demo", "--out", folder / "bad", "--lead-ms", -1) == 2
    assert "lead_ms: -1.0 is outside" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--requests", 0, "requests: 0 is outside [1, 1000000]"),
        ("--history", -1, "history: -1 is outside [0, 1000000]"),
        ("--large-requests", -1, "large_requests: -1 is outside [0, 1000000]"),
        ("--large-preset", "hstu-tinny", "large_preset: 'hstu-tinny' is unknown; did you mean hstu-tiny"),
        ("--model", "nowhere", "nowhere"),
    ],
)
def test_bad_options_are_refused_before_the_work(
    folder: Path,
    option: str,
    value: object,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def begun(*args: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("relaygr.bench.demo.pick_threads", begun)
    assert run("demo", "--events", folder / "events", "--out", folder / "worse", option, value) == 2
    assert words in capsys.readouterr().err
    assert not (folder / "worse").exists()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [f"u{row},{row},{row}" for row in range(40)],
            "is too small: none of the 36 items .* occurs 2 times",
        ),
        ([f"u{row},{row % 12},{row}" for row in range(40)], "nobody returns after the training part ends"),
        (
            [f"u{row % 4},{row % 10},{row}" for row in range(40)],
            r"is too small: 10 items before the test part, and ranking needs more than 10",
        ),
        ([], "has no events"),
    ],
)
def test_tiny_events_are_named_before_training(
    tmp_path: Path, rows: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]))
    assert run("data", "csv", tmp_path / "tiny.csv", "--out", tmp_path / "events") == 0
    assert demo(tmp_path, "out") == 2
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
