"""Output paths that cannot be written are refused, with the option, before anything is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relaygr.config.paths import check_file, check_folder
from relaygr.core.errors import ConfigError


def test_what_can_be_made_is_fine_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").write_text("x")
    check_file("--json", None)
    for file in (tmp_path / "new", tmp_path / "old", tmp_path / "deep" / "er" / "new", Path("new")):
        check_file("--json", file)
    for folder in (tmp_path, tmp_path / "deep" / "er", Path("new"), Path()):
        check_folder("--out", folder)
    assert [child.name for child in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("check", "path", "words"),
    [
        (check_file, "", "is a folder"),
        (check_file, "afile/x", "cannot be made: .*afile is not a folder"),
        (check_file, "afile/x/y", "cannot be made: .*afile is not a folder"),
        (check_file, "n" * 300, "cannot be used: File name too long"),
        (check_folder, "afile", "is a file"),
        (check_folder, "afile/x", "cannot be made: .*afile is not a folder"),
        (check_folder, "n" * 300, "cannot be used: File name too long"),
    ],
)
def test_what_cannot_is_refused(tmp_path: Path, check: object, path: str, words: str) -> None:
    (tmp_path / "afile").write_text("x")
    assert callable(check)
    with pytest.raises(ConfigError, match=f"--some: .*{words}"):
        check("--some", tmp_path / path)


def test_permission_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "afile").write_text("x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for check, path in (
        (check_file, "afile"),
        (check_file, "new"),
        (check_folder, ""),
        (check_folder, "new"),
    ):
        with pytest.raises(ConfigError, match="no permission"):
            check("--some", tmp_path / path)
