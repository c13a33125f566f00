"""The length study from events to files: what is written, what is not trained twice, what must be said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
import torch

import relaygr.bench.length as study_module
from relaygr.bench import length_plot
from relaygr.bench.length import StudySpec, replace_file, run_study
from relaygr.bench.length_cells import cell, direction, gap_cell, number, signed
from relaygr.bench.length_notes import notes_for, parse_notes
from relaygr.bench.length_result import LengthStudy
from relaygr.config.settings import TrainConfig
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Meta, Totals
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import EventTable, write_events
from relaygr.training.cap_estimates import CapEstimate
from relaygr.training.ranker import RankerTrainer

TRAIN = TrainConfig(
    max_steps=2, batch_users=4, batch_rows=256, cuts=4, negatives=4, eval_requests=5, min_history=4
)
FILES = {"length.json", "length.md", "length.svg", "models"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One set with repeats, and one in which a user meets an item once."""
    folder = tmp_path_factory.mktemp("sets")
    spec = SynthSpec(users=25, mean_length=30, max_length=80, items=80, clusters=4, seed=1)
    write_events(folder / "a", synthesize(spec), name="again", source="test", licence="CC0-1.0")
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(12), 30)
    item = np.concatenate([rng.permutation(60)[:30] for _ in range(12)])
    time = np.tile(np.arange(30), 12) * 1000 + user
    table = EventTable([f"u{i}" for i in range(12)], user, item, time, np.ones(len(user), dtype=np.int64))
    write_events(folder / "b", table, name="ml-latest-made", source="test", licence="")
    return folder / "a", folder / "b"


def spec_for(datasets: tuple[Path, ...], out: Path, **changes: object) -> StudySpec:
    settings: dict[str, object] = {
        "seeds": (0, 1), "caps": (4, 16), "train": TRAIN, "requests": 12, "full_requests": 6,
        "calibration_requests": 8, "negatives": 10, "command": "relaygr eval length ...",
    }  # fmt: skip
    return StudySpec(events=datasets, out=out, **(settings | changes))  # type: ignore[arg-type]


def quiet(step: str, done: float, words: str) -> None:
    assert 0 <= done <= 1
    assert step
    assert isinstance(words, str)


@pytest.fixture(scope="module")
def finished(
    datasets: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, LengthStudy]:
    out = tmp_path_factory.mktemp("study") / "deep" / "out"
    notes = (("again", "Made up for tests."),)
    return out, run_study(spec_for(datasets, out, notes=notes), quiet)


def test_files_hold_the_study(finished: tuple[Path, LengthStudy]) -> None:
    out, study = finished
    assert {path.name for path in out.iterdir()} == FILES
    stored = msgspec.json.decode((out / "length.json").read_bytes(), type=LengthStudy)
    assert stored == study
    assert [dataset.name for dataset in study.datasets] == ["again", "ml-latest-made"]
    assert [run.reused for dataset in study.datasets for run in dataset.models] == [False] * 4
    for dataset in study.datasets:
        sampled, *without_own, full = dataset.reports
        assert (sampled.options.candidates, full.options.candidates) == ("sampled", "full")
        assert [report.options.own_share for report in without_own] == [0] * (dataset.name == "again")
        assert [model.fingerprint for model in sampled.models] == [run.fingerprint for run in dataset.models]
        assert len({run.fingerprint for run in dataset.models}) == 2
        assert {model.history_limit for model in sampled.models} == {512}
    assert [dataset.reports[0].seen for dataset in study.datasets] == ["keep", "drop"]
    # Where no candidate is in the history, models do not read how long ago it was.
    assert [dataset.train.last_seen for dataset in study.datasets] == [True, False]
    assert {dataset.train.min_history for dataset in study.datasets} == {4}
    root = ElementTree.fromstring((out / "length.svg").read_text())
    assert root.tag.endswith("svg")
    text = "".join(root.itertext())
    assert "ml-latest-made, whole catalogue" in text
    assert "NE (lower is better)" in text
    assert "recency over users" in text


def test_page_says_what_must_be_said(finished: tuple[Path, LengthStudy]) -> None:
    page = (finished[0] / "length.md").read_text()
    first, second = page.split("## again")[1].split("## ml-latest-made")
    assert "> Made up for tests." in first
    assert "development set, not fit for shared research results" in second
    assert "https://doi.org/10.1145/2827872" in second
    assert "development" not in first
    assert "relaygr eval length ..." in page
    assert "| recency |" in first
    assert "| recency |" not in second
    assert "no candidates" in second
    for line in page.splitlines():
        if line.startswith("|"):
            assert "nan" not in line
    tables = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    assert len(tables) == (1 + 3 * 2 * 2) + (1 + 2 * 2 * 2)
    assert first.count("none of the user's own") == 1
    assert "none of the user's own" not in second
    for rows in tables:
        assert len({row.count("|") for row in rows}) == 1


def assert_alike(before: Sequence[CapEstimate], after: Sequence[CapEstimate]) -> None:
    """The same estimates but for rounding: products of fp32 matrices depend on where in memory these lie."""
    for one, other in zip(before, after, strict=True):
        # One request ranks differently at most, where two scores are all but equal.
        exact = one.scorer != "model"
        wide = 0.0 if exact else 1e-4 if one.metric == "ne" else 0.1
        numbers = [(e.mean, e.low, e.high, *e.per_model) for e in (one, other)]
        assert numbers[1] == pytest.approx(numbers[0], rel=0, abs=wide, nan_ok=True)
        blank = {"mean": 0.0, "low": 0.0, "high": 0.0, "per_model": ()}
        assert msgspec.structs.replace(one, **blank) == msgspec.structs.replace(other, **blank)


def test_finished_models_are_not_trained_again(
    finished: tuple[Path, LengthStudy], datasets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, study = finished

    def refuse(*arguments: object) -> None:
        raise AssertionError("trained again")

    with monkeypatch.context() as patched:
        patched.setattr(RankerTrainer, "run", refuse)
        again = run_study(spec_for(datasets, out, notes=(("again", "Made up for tests."),)), quiet)
        assert [run.reused for dataset in again.datasets for run in dataset.models] == [True] * 4
        for old, new in zip(study.datasets, again.datasets, strict=True):
            for before, after in zip(old.reports, new.reports, strict=True):
                assert_alike(before.estimates, after.estimates)
        for changes in (
            {"train": msgspec.structs.replace(TRAIN, lr=1e-3)},
            {"train": msgspec.structs.replace(TRAIN, max_steps=3)},
            {"seeds": (7,)},
            {"caps": (4, 600)},
        ):
            with pytest.raises(AssertionError, match="trained again"):
                run_study(spec_for(datasets, out, **changes), quiet)


def test_an_unfinished_or_damaged_model_is_trained_again(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    spec = spec_for(datasets[:1], tmp_path, seeds=(0,))

    def stop(step: str, done: float, words: str) -> None:
        if "train" in step and words.startswith("step 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(spec, stop)
    assert {path.name for path in tmp_path.iterdir()} == {"models"}
    first = run_study(spec, quiet).datasets[0].models[0]
    assert not first.reused
    weights = tmp_path / first.folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    second = run_study(spec, quiet).datasets[0].models[0]
    assert (second.reused, second.fingerprint) == (False, first.fingerprint)
    assert run_study(spec, quiet).datasets[0].models[0].reused


def test_an_interrupted_evaluation_keeps_the_older_files(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    spec = spec_for(datasets[:1], tmp_path, seeds=(0,))
    run_study(spec, quiet)
    before = {name: (tmp_path / name).read_bytes() for name in FILES - {"models"}}

    def stop(step: str, done: float, words: str) -> None:
        if "whole" in step and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(spec, stop)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    replace_file(file, b"old")

    def interrupt(*paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_module.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_file(file, b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"events": ()}, "events: none given"),
        ({"caps": (16, 4)}, "caps: 4 after 16: caps must ascend"),
        ({"caps": (4, 65537)}, "caps: 65537 is more than the 65536 events that any model can read"),
        ({"seeds": ()}, r"seeds: 0 must be in \[1, 100\]"),
        ({"seeds": (1, 1)}, r"seeds: \[1, 1\] holds a seed twice"),
        ({"seeds": (-1,)}, "seeds: -1 must be in"),
        ({"requests": 0}, r"requests: 0 must be in \[1, 1000000\]"),
        ({"full_requests": 0}, "full_requests: 0 must be in"),
        ({"calibration_requests": 0}, "calibration_requests: 0 must be in"),
        ({"negatives": 0}, "negatives: 0 must be in"),
        ({"preset": "hstu-tyny"}, "preset: 'hstu-tyny' is unknown"),
        ({"notes": (("other", "x"),)}, "note: 'other' is none of the datasets: again, ml-latest-made"),
    ],
)
def test_bad_options_fail_before_training(
    datasets: tuple[Path, Path], tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    folders = changes.pop("events", datasets)
    with pytest.raises(ConfigError, match=words):
        run_study(spec_for(folders, tmp_path, **changes), quiet)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_two_datasets_of_one_name(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are both called 'again'"):
        run_study(spec_for((datasets[0], datasets[0]), tmp_path), quiet)


def test_plots_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_plot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"plots: matplotlib is missing.*relaygr\[plots\]"):
        length_plot.check_plots()


def test_notes_have_a_form() -> None:
    assert parse_notes("--note", ["a=b = c\nd"]) == (("a", "b = c d"),)
    for text in ("a", "=b", "a= "):
        with pytest.raises(ConfigError, match="must have the form NAME=TEXT"):
            parse_notes("--note", [text])


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("ml-latest-small-2016", "a file", ["call it a development set", "TiiS"]),
        ("films", "MovieLens, GroupLens Research", ["does not say which edition", "TiiS"]),
        ("ml-1m", "MovieLens, GroupLens Research", ["TiiS"]),
        ("git-rails", "rails", []),
    ],
)
def test_known_notes(name: str, source: str, words: list[str]) -> None:
    totals = Totals(users=0, events=0, items=0, first_s=0, last_s=0)
    meta = Meta(
        format_version=1, name=name, source=source, licence="", actions=("engage",), statistics=totals
    )
    found = notes_for(meta, ((name, "mine"), ("other", "not mine")))
    assert found[-1] == "mine"
    assert len(found) == len(words) + 1
    for note, piece in zip(found, words, strict=False):
        assert piece in note


def estimate(mean: float, low: float, high: float, metric: str = "ndcg@10") -> CapEstimate:
    return CapEstimate(
        scorer="model", segment="all", over="users", metric=metric, cap=64, minus=16, mean=mean, low=low,
        high=high, per_model=(mean - 0.01, mean + 0.01),
    )  # fmt: skip


def test_cells() -> None:
    assert [number(value) for value in (0.25, 1.0, 12.3456)] == [".250", "1.000", "12.346"]
    assert [signed(value) for value in (0.25, -0.25, 0.0001, -1.5)] == ["+.250", "−.250", "0", "−1.500"]
    up, flat = estimate(0.05, 0.01, 0.09), estimate(0.05, -0.01, 0.11)
    assert cell(up) == ".050 [.010, .090] (.040 to .060)"
    assert cell(up, few=True, spread=False) == ".050"
    assert gap_cell(up) == "**+.050 [+.010, +.090]** (+.040 to +.060)"
    assert gap_cell(flat) == "+.050 [−.010, +.110] (+.040 to +.060)"
    assert gap_cell(up, few=True) == "+.050 (+.040 to +.060)"
    assert direction(up) == "better"
    assert direction(flat) == "within noise"
    assert direction(estimate(0.05, 0.01, 0.09, "ne")) == "worse"
    assert direction(estimate(-0.05, -0.09, -0.01, "ne")) == "better"
    assert direction(estimate(0, 0, 0)) == "reads the same"
