"""`relaygr train slate` with wrong options, hostile logs, and interrupted in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relaygr.cli.main import main
from relaygr.training.slate.simulated import write_world
from relaygr.training.slate.world import World, WorldConfig

# Is killed when the second file of the step model is to be written.
_KILLED = """
import os, signal, sys
from relaygr.listwise import artefact
real = artefact._replace
def replace(file, data):
    if file.suffix == ".json":
        os.kill(os.getpid(), signal.SIGKILL)
    real(file, data)
artefact._replace = replace
from relaygr.cli.main import main
main(sys.argv[1:])
"""


def train(*arguments: object) -> int:
    try:
        main(["train", "slate", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("world")
    write_world(made, World(WorldConfig(items=100, candidates=15, length=4)), 120, 0)
    return made


def inputs(world: Path) -> list[object]:
    return ["--logs", world / "logs", "--value", world / "value.json", "--items", world / "items.npz"]


def contents(out: Path) -> dict[str, bytes]:
    names = [one for one in out.iterdir() if not one.name.startswith(".")]
    files = [path for one in names for path in (one.iterdir() if one.is_dir() else [one])]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def test_a_killed_rerun_leaves_what_was_there(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert train(*inputs(world), "--out", out) == 0
    before = contents(out)
    assert {"step/step.json", "step/step.safetensors", "train_report.json", "slate.toml"} == set(before)
    again = [*map(str, inputs(world)), "--seed", "5", "--out", str(out)]
    child = [sys.executable, "-c", _KILLED, "train", "slate", *again]
    ended = subprocess.run(child, check=False, capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert contents(out) == before
    assert train(*again) == 0
    after = contents(out)
    assert set(after) == set(before)
    assert after["step/step.safetensors"] != before["step/step.safetensors"]
    # A run that fails by itself does not change it either.
    assert train(*inputs(world)[:4], "--out", out, "--one-shot", "--watch-head", "other") == 2
    assert contents(out) == after


def test_simulated_logs_are_of_the_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert train("--simulate", 60, "--out", out) == 0
    lines = (out / "logs" / "lists-1.jsonl").read_bytes().splitlines()
    assert len(lines) == 60
    assert not (out / "logs" / "lists-2.jsonl").exists()
    assert f'"{out}/items.npz"' in (out / "slate.toml").read_text()
    assert train("--logs", out / "logs", "--value", out / "value.json", "--out", out) == 2
    assert "--logs: " in capsys.readouterr().err
    (tmp_path / "other" / "logs").mkdir(parents=True)
    assert train("--simulate", 60, "--out", tmp_path / "other") == 2
    assert "logs: is not of an earlier training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--members", 3), "--members: goes with --evaluator, which is not given"),
        (("--grid",), "--grid: goes with --evaluator, which is not given"),
        (("--evaluator", "--members", 10**9), "members: 1000000000 must be in [1, 100]"),
        (("--evaluator", "--members", 0), "members: 0 must be in [1, 100]"),
        (("--seed", -1), "seed: -1 must be in [0, 4294967295]"),
        (("--seed", 2**32), "seed: 4294967296 must be in"),
        (("--watch-head", "x"), "watch_head: 'x' is none of watch"),
    ],
)
def test_wrong_options(
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[object, ...],
    said: str,
) -> None:
    assert train(*inputs(world), *arguments, "--out", tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert len(told) < 1500
    assert not (tmp_path / "out" / "step").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--simulate", 10, "--items", "i.npz"), "--items: goes with --logs, not with --simulate"),
        (("--simulate", 10, "--value", "v.json"), "--value: goes with --logs, not with --simulate"),
        (("--simulate", 10**12), "--simulate: 1000000000000 must be in [1, 1000000]"),
        (("--simulate", 10, "--seed", -1), "seed: -1 must be in"),
        (("--simulate", 1), "lists leave none for the part"),
        (("--logs", "nowhere", "--value", "v.json"), "nowhere/log.json: cannot be read"),
    ],
)
def test_wrong_modes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[object, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(*arguments, "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "step").exists()


def test_nothing_consumed(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "log.json").write_bytes((world / "logs" / "log.json").read_bytes())
    lines = (world / "logs" / "lists-1.jsonl").read_text().splitlines()
    made = [json.loads(line) | {"consumed": 0, "labels": [], "more": False} for line in lines]
    (logs / "lists-1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    assert train("--logs", logs, "--value", world / "value.json", "--out", tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert "consumed: is 0 in all" in told
    assert "of the fold 'step'" in told


VALUES = (
    b"",
    b"\x1f\x8b\x08\x00",
    b"\xff\xfe{\x00}\x00",
    b"[" * 100_000,
    b'{"id": "v", "terms": [{"weight": NaN}]}',
    b'{"id": "v", "terms": [{"weight": 1e400}]}',
    b'{"id": "v", "id": "w", "terms": [{"weight": 1, "factors": [{"head": "watch"}]}]}',
    b'{"id": "v", "terms": [{"weight": 1, "factors": [{"head": "' + b"x" * 100_000 + b'"}]}]}',
    b'{"id": "v", "' + b"x" * 100_000 + b'": 1}',
    b" " * (2 << 20) + b'{"id": "v", "terms": [{"weight": 1, "factors": [{"head": "watch"}]}]}',
)


@pytest.mark.parametrize("text", VALUES, ids=range(len(VALUES)))
def test_hostile_value_functions(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    (tmp_path / "v.json").write_bytes(text)
    assert train("--logs", world / "logs", "--value", tmp_path / "v.json", "--out", tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert "v.json" in told or "terms[0]" in told
    assert "Traceback" not in told
    assert len(told) < 2000
