"""Folders of published decoders, written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session", name="published")
def _published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case of `decoder_cases`, not to be changed."""
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        from decoder_cases import theirs  # the published implementation takes seconds to import

        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            theirs(name).save_pretrained(folders[name])
        return folders[name]

    return folder
