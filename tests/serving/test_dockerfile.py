"""The Dockerfile is clean, and what it copies, installs and asks for is there. No image is built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from relaygr.config.load import load_config
from relaygr.serving.app import OPERATIONS

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
LINES = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.M)


def hadolint(file: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert program, "hadolint is missing: make setup"
    command = [program, "--no-color", "--failure-threshold", "info", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_lint(tmp_path: Path) -> None:
    done = hadolint(ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python:latest\nRUN pip install x\n")
    assert hadolint(bad).returncode != 0


def ancestry(target: str) -> list[str]:
    """A stage and what it is made from."""
    by_name = {name: base for base, name in STAGES}
    found = [target]
    while found[-1] in by_name:
        found.append(by_name[found[-1]])
    return found


def lines_of(stage: str) -> list[str]:
    starts = [place for place, line in enumerate(LINES) if line.startswith("FROM ")]
    [start] = [place for place in starts if LINES[place].endswith(f" AS {stage}")]
    return LINES[start : min((place for place in starts if place > start), default=len(LINES))]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_targets(target: str) -> None:
    *stages, image = ancestry(target)
    named, _, tag = image.partition(":")
    assert "/" not in named, "an image of a registry that not everybody has"
    assert re.fullmatch(r"\d+\.\d+\.\d+-slim-\w+", tag)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert tuple(map(int, tag.split(".")[:2])) >= tuple(map(int, wanted.removeprefix(">=").split(".")))
    lines = [line for stage in stages for line in lines_of(stage)]
    users = [line for line in lines if line.startswith("USER ")]
    assert users == ["USER 10001:10001"]
    assert sum(line.startswith("HEALTHCHECK") for line in lines) == 1
    # The environment is built elsewhere: this image has no sources and no caches.
    assert f"COPY --from=build-{target} /opt/relaygr /opt/relaygr" in lines


def test_the_last_target_is_the_one_for_everybody() -> None:
    assert STAGES[-1][1] == "cpu"


def test_health_check_and_command() -> None:
    url = re.search(r"^ENV RELAYGR_HEALTH_URL=http://127\.0\.0\.1:(\d+)(/\S+)$", TEXT, re.M)
    exposed = re.search(r"^EXPOSE (\d+)$", TEXT, re.M)
    assert url
    assert exposed
    assert url[2] in {one.path for one in OPERATIONS}
    # Settings that the image gave in variables would go over those of a mounted file.
    assert "RELAYGR_SERVING" not in TEXT
    assert "RELAYGR_STORE" not in TEXT
    # The variable of the health check is no setting.
    config = load_config(ROOT / "deploy" / "relaygr.toml", {"RELAYGR_HEALTH_URL": url[0]})
    assert (config.serving.host, str(config.serving.port)) == ("0.0.0.0", url[1])
    assert exposed[1] == url[1]
    assert "COPY deploy/relaygr.toml /etc/relaygr/relaygr.toml" in LINES
    assert 'CMD ["serve", "--config", "/etc/relaygr/relaygr.toml"]' in LINES
    folder = str(Path(config.store.url.removeprefix("sqlite:///")).parent)
    assert f"WORKDIR {folder}" in LINES
    assert f"--group=10001 {folder}" in TEXT


def test_what_is_copied_is_there_and_not_ignored() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().split() if not line.startswith("#")]
    assert "*" in rules
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    copied = {
        part
        for line in LINES
        if line.startswith("COPY ") and "--from" not in line
        for part in line.split()[1:-1]
    }
    assert copied == set(kept)
    assert all((ROOT / one).exists() for one in copied)


def test_versions_are_those_of_the_project() -> None:
    torch = re.findall(r"torch==([\d.]+)", TEXT)
    assert len(torch) == 2
    assert re.findall(r"torch==([\d.]+)", (ROOT / "Makefile").read_text()) == [torch[0]] == [torch[1]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = set(re.findall(r"\.\[([\w,]+)\]", TEXT))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    pinned = (ROOT / "deploy" / "constraints.txt").read_text()
    needed = [*project["dependencies"]]
    for extra in extras.split(","):
        needed += project["optional-dependencies"][extra]
    for one in needed:
        name = re.split(r"[\[>=]", one)[0]
        if name != "torch":
            assert re.search(rf"^{re.escape(name)}==[\d.]+$", pinned, re.M), name
    assert not any(fnmatch(line, "*://*") or "@" in line for line in pinned.splitlines())
