"""`relaygr gateway`: wrong settings end it with one line, and other commands are not loaded for it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from relaygr.cli.main import main


@pytest.fixture(autouse=True)
def logs_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "router.members: is empty"),
        (("--member", "a"), "--member: 'a' must have the form ID=URL"),
        (("--member", "a=ftp://x"), "router.members[0].url: 'ftp://x' must be http://HOST:PORT"),
        (("--member", "a=http://x/path"), "router.members[0].url"),
        (("--member", "a b=http://x"), "router.members[0].id"),
        (("--member", "a=http://x", "--member", "a=http://y"), "router.members[1].id: 'a' is there twice"),
        (("--member", "a=http://x", "--set", "router.self_id=b"), "router.self_id: 'b' is no id"),
        (("--member", "a=http://x", "--set", "serving.host=999.1.1.1"), "serving.host: cannot listen"),
    ],
)
def test_wrong_settings(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gateway", "--port", "0", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_members_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text('[[router.members]]\nid = "a"\nurl = "http://x:1"\nweight = 0\n')
    with pytest.raises(SystemExit):
        main(["gateway", "--config", str(config)])
    assert "router.members[0].weight: 0.0 must be in (0, 1000000]" in capsys.readouterr().err


def test_a_command_loads_only_itself() -> None:
    code = (
        "import sys; from relaygr.cli.main import main\n"
        "try: main(['gateway'])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('relaygr.cli.') or name == 'torch'))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['relaygr.cli.gateway', 'relaygr.cli.main']"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_says_what_commands_do(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "gateway Route requests to instances" in said
    assert "serve Serve ranking over HTTP" in said
