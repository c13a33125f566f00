"""Sets of files that are swapped: whatever kills the writer, one of the two sets is there, and whole."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from relaygr.core.errors import ConfigError
from relaygr.training.slate.replaced import check_not_inside, replaced

# Kills itself at the K-th call that changes the file system; ends with 0 if there are fewer.
_CHILD = """
import os, shutil, signal, sys
from pathlib import Path

def counted(module, name):
    real = getattr(module, name)
    def call(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(module, name, call)

left, out, files = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
for name in ("mkdir", "symlink", "replace", "unlink", "rmdir", "chmod", "open"):
    counted(os, name)
counted(shutil, "rmtree")
from relaygr.training.slate.replaced import replaced
with replaced(out, ()) as fresh:
    for file in files:
        (fresh / file).mkdir()
        (fresh / file / "x").write_text(" ".join(files))
"""


def write(out: Path, *names: str) -> None:
    with replaced(out, names) as fresh:
        for name in names:
            (fresh / name).mkdir()
            (fresh / name / "x").write_text(" ".join(names))


def held(out: Path) -> dict[str, str]:
    """What a reader finds: by entry, what its file says. Links to nothing are nothing."""
    entries = [one for one in out.iterdir() if not one.name.startswith(".")] if out.exists() else []
    return {one.name: (one / "x").read_text() for one in entries if one.exists()}


def sets(out: Path) -> list[str]:
    return [one.name for one in out.iterdir() if one.name.startswith(".set-")]


OLD, NEW = ("evaluator", "step"), ("one_shot", "step")


def test_a_kill_at_any_moment_leaves_one_of_the_two(tmp_path: Path) -> None:
    found = []
    for at in range(1, 100):
        out = tmp_path / f"{at}"
        write(out, *OLD)
        child = [sys.executable, "-c", _CHILD, str(at), str(out), *NEW]
        ended = subprocess.run(child, check=False, timeout=60).returncode
        found.append(held(out))
        assert found[-1] in [dict.fromkeys(names, " ".join(names)) for names in (OLD, NEW)]
        # The next run sees to what was left lying about.
        write(out, *OLD)
        assert held(out) == dict.fromkeys(OLD, "evaluator step")
        assert len(sets(out)) == 1
        if ended == 0:
            break
    assert ended == 0
    assert at > 10
    assert found[0] != found[-1]
    assert sum(before != after for before, after in pairwise(found)) == 1


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path, *OLD)
    with pytest.raises(FileNotFoundError), replaced(tmp_path, NEW) as fresh:
        (fresh / "step" / "x").write_text("half")
    assert held(tmp_path) == dict.fromkeys(OLD, "evaluator step")
    assert len(sets(tmp_path)) == 1
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "x").write_text("mine")
    write(tmp_path, *NEW)
    assert held(tmp_path) == {"notes": "mine"} | dict.fromkeys(NEW, "one_shot step")


def test_what_is_not_of_a_set_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    with pytest.raises(ConfigError, match="step: is not of an earlier training"):
        write(tmp_path, *OLD)
    assert sets(tmp_path) == []


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with replaced(tmp_path, ()), pytest.raises(ConfigError, match="another training"):
        write(tmp_path, *OLD)
    write(tmp_path, *OLD)


def test_what_goes_away_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "out", *OLD)
    check_not_inside("--value", None, tmp_path / "out")
    check_not_inside("--value", tmp_path / "other", tmp_path / "out")
    check_not_inside("--value", tmp_path / "out" / "other", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--value: .* is of the set in .*out that is replaced"):
        check_not_inside("--value", tmp_path / "out" / "step" / "x", tmp_path / "out")
    check_not_inside("--value", tmp_path / "out" / "step" / "x", tmp_path / "again")
