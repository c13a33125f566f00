"""The benchmark against real servers of its own: load, quick and soak, as short as they can be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from relaygr.bench import demo_plots
from relaygr.bench.cell import random_ranker
from relaygr.bench.serve_interference import total
from relaygr.bench.serve_process import ServerProcess
from relaygr.bench.serve_quick import QuickReport, QuickSpec
from relaygr.bench.serve_report import ServeReport
from relaygr.bench.soak import SoakSpec, violations
from relaygr.bench.soak_check import wrong_rankings
from relaygr.bench.soak_people import Sample
from relaygr.bench.soak_report import Held, SoakReport
from relaygr.cli.main import main
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.units import MIB
from relaygr.engine import Engine, RankRequest, UserHistory
from relaygr.models.presets import preset
from relaygr.models.weights import save_ranker


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = ["store.url=sqlite://memory", "engine.device_bytes=64MiB", "serving.calibrate_s=0.1"]
    with ServerProcess(tmp_path_factory.mktemp("server"), settings) as server:
        yield server.url


def test_a_load_of_a_real_server(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, svg = tmp_path / "new" / "serve.json", tmp_path / "serve.svg"
    options = ["--rate", 20, "--duration", 1, "--warmup", 0.2, "--users", 4, "--history", 64]
    options += ["--candidates", 8, "--deadline-ms", 30_000, "--timeout-ms", 60_000, "--json", file]
    if demo_plots.available():
        options += ["--svg", svg]
    assert run("bench", "serve", url, *options) == 0
    report = msgspec.json.decode(file.read_bytes(), type=ServeReport)
    assert report.load is not None
    assert report.load.failures == []
    assert report.load.good == report.load.visits > 0
    assert len(report.load.models) == 1
    assert report.users_left == 0
    printed = capsys.readouterr().out
    assert "20 visits/s for 1 s" in printed
    assert f"{report.load.good} of {report.load.visits} (100.00%)" in printed
    if demo_plots.available():
        assert re.search(r"all \(\d+\)", svg.read_text())


def test_a_search_on_a_real_server(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, svg = tmp_path / "slo.json", tmp_path / "slo.svg"
    options = ["--rate", 10, "--duration", 0.3, "--warmup", 0, "--users", 2, "--history", 32]
    options += ["--candidates", 4, "--find-slo", "--slo-ms", 60_000, "--slo-probes", 2, "--json", file]
    if demo_plots.available():
        options += ["--svg", svg]
    # Two probes double and confirm nothing: no rate is claimed, and the command says so.
    assert run("bench", "serve", url, *options) == 1
    report = msgspec.json.decode(file.read_bytes(), type=ServeReport)
    assert report.search is not None
    assert [probe.rate for probe in report.search.probes] == [10, 20]
    assert "no rate passes (2 probes are made)" in capsys.readouterr().out
    if demo_plots.available():
        assert "99.0% must be good" in svg.read_text()


def test_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaygr.bench.serve_quick._ROOM", 8)
    file = tmp_path / "quick.json"
    options = ["--preset", "hstu-tiny", "--history", 128, "--candidates", 8, "--rate", 20, "--duration", 0.8]
    assert run("bench", "serve", "--quick", "--pairs", 2, *options, "--json", file) == 0
    report = msgspec.json.decode(file.read_bytes(), type=QuickReport)
    assert (report.errors, len(report.interference.pairs)) == (0, 2)
    assert report.overhead.samples == 300
    assert report.overhead_p50_ms == report.overhead.overhead_p50_ms
    for pair in report.interference.pairs:
        assert pair.ratio == pytest.approx((pair.p99_with_ms - pair.chunk_ms) / pair.p99_without_ms)
        assert 0 < pair.saturation <= 1
    assert "0 errors" in capsys.readouterr().out


def test_a_short_soak_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "soak.json"
    options = ["--requests", 240, "--workers", 4, "--users", 8, "--sample", 1, "--max-growth", "8GiB"]
    assert run("bench", "soak", *options, "--json", file) == 0
    report = msgspec.json.decode(file.read_bytes(), type=SoakReport)
    assert report.violations == []
    assert (report.requests, report.reloads, report.failed, report.wrong) == (240, 2, 0, 0)
    assert report.checked > 50
    assert {"rank", "append", "bad_body", "cancel_rank", "disconnect"} <= report.counts.keys()
    assert (report.after.leases, report.after.pinned_bytes, report.after.waiting) == (0, 0, 0)
    assert "wrong answers: 0" in capsys.readouterr().out


HELD = Held(rss_bytes=100, files=20, leases=0, pinned_bytes=0, waiting=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"after": msgspec.structs.replace(HELD, rss_bytes=150, files=36)}, ""),
        ({"after": msgspec.structs.replace(HELD, rss_bytes=None, files=None)}, ""),
        ({"failed": 1}, "1 well-formed requests failed"),
        ({"wrong": 2}, "2 answers are wrong"),
        ({"reloads": 1}, "1 of 2 reloads worked"),
        ({"after": msgspec.structs.replace(HELD, rss_bytes=151)}, "has gained 51 bytes, limit 50"),
        ({"after": msgspec.structs.replace(HELD, leases=1)}, "1 leases, 0 pinned bytes and 0 jobs"),
        ({"after": msgspec.structs.replace(HELD, waiting=1)}, "0 pinned bytes and 1 jobs are left"),
        ({"after": msgspec.structs.replace(HELD, files=37)}, "37 open files, 20 before"),
    ],
)
def test_what_violates(changes: dict[str, object], words: str) -> None:
    report = SoakReport(
        cpu="c",
        cores=1,
        preset="p",
        seed=0,
        requests=10,
        seconds=1.0,
        counts={},
        failed=0,
        wrong=0,
        checked=3,
        reloads=2,
        before=HELD,
        after=HELD,
        violations=[],
    )
    found = violations(SoakSpec(max_growth_bytes=50), msgspec.structs.replace(report, **changes))
    assert len(found) == (1 if words else 0)
    assert words in "".join(found)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("model")
    save_ranker(random_ranker(preset("hstu-tiny"), torch.float32, 5), folder)
    return Engine.load(folder, EngineConfig(dtype="fp32", device_bytes=16 * MIB))


def sample(engine: Engine, **changes: object) -> Sample:
    items, times, candidates = [3, 1, 4, 1], [10, 20, 30, 40], [9, 2, 6]
    scores = engine.rank(RankRequest(UserHistory("u", items, times), candidates)).logits.tolist()
    right: dict[str, object] = {
        "user": "u",
        "items": [*items, 7],
        "times": [*times, 50],
        "events": 4,
        "candidates": candidates,
        "scores": scores,
        "model": engine.model_fp.hex(),
        "path": "hit",
        "served_tokens": 4,
    }
    return Sample(**{**right, **changes})  # type: ignore[arg-type]


def test_right_rankings_pass(engine: Engine) -> None:
    shorter = UserHistory("u", [4, 1], [30, 40], first_sequence=2)
    cut = engine.rank(RankRequest(shorter, [9, 2, 6])).logits.tolist()
    samples = [sample(engine), sample(engine, path="truncated", served_tokens=2, scores=cut)]
    assert wrong_rankings(samples, {engine.model_fp.hex(): engine}) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "00"}, "is no model of this run"),
        ({"served_tokens": 3}, "served from 3 tokens of 4"),
        ({"events": 5, "served_tokens": 5}, "a score is off by"),
        ({"candidates": [2, 9, 6]}, "a score is off by"),
        ({"path": "truncated", "served_tokens": 2}, "a score is off by"),
        ({"scores": [[0.0]]}, "scores have shape"),
        ({"scores": [[float("nan")]] * 3}, "a score is off by nan"),
        ({"times": [10, 20, 30, 5, 50]}, "was answered, but timestamps"),
    ],
)
def test_wrong_rankings_are_found(engine: Engine, changes: dict[str, object], words: str) -> None:
    (line,) = wrong_rankings([sample(engine, **changes)], {engine.model_fp.hex(): engine})
    assert words in line


def test_a_difference_in_the_sixth_digit_is_found(engine: Engine) -> None:
    right = np.asarray(sample(engine).scores)
    moved = sample(engine, scores=(right + 2e-5 * np.maximum(np.abs(right), 1)).tolist())
    assert len(wrong_rankings([moved], {engine.model_fp.hex(): engine})) == 1


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, ["serving.model=nowhere", "store.url=sqlite://memory"])
    with pytest.raises(BackendError, match=r"(?s)ended with status 2; it said: .*nowhere"), server:
        pass


def test_a_series_is_summed_over_its_labels() -> None:
    text = '# HELP a_sum x\na_sum{m="1"} 2.5\na_sum{m="2"} 1\na_sum_created 9\nb 3\n'
    assert (total(text, "a_sum"), total(text, "b")) == (3.5, 3.0)
    with pytest.raises(BackendError, match="/metrics has no c"):
        total(text, "c")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("bench", "serve", "--rate", 0), "--rate: 0.0 is outside"),
        (("bench", "serve", "nowhere"), "URL: 'nowhere' must be"),
        (("bench", "serve", "--json", "."), "--json: . is a folder"),
        (("bench", "serve", "--find-slo", "--slo-ms", 0), "--slo-ms: 0.0 is outside"),
        (("bench", "serve", "--quick", "--preset", "hstu-tinny"), "did you mean hstu-tiny"),
        (("bench", "serve", "--quick", "--history", 5), "--history: 5 is outside"),
        (("bench", "soak", "--requests", 1), "--requests: 1 is outside"),
        (("bench", "soak", "--workers", 8, "--users", 7), "--users: 7 is outside [8"),
        (("bench", "soak", "--max-growth", "much"), "--max-growth: "),
    ],
)
def test_bad_options(options: tuple[object, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*options) == 2
    assert words in capsys.readouterr().err


def test_presets_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="not cacheable by appending"):
        SoakSpec(preset="nvidia-kuairand")
    with pytest.raises(ConfigError, match="--pairs"):
        QuickSpec(pairs=0)
