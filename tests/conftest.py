"""Where the shared data sets are, for the tests that check published numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_data_folder() -> Path:
    """`$RELAYGR_SHARED`, or `../shared/data` beside the repository; it may not exist."""
    folder = os.environ.get("RELAYGR_SHARED")
    return Path(folder) if folder else Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Finds a file under the shared data folder, or skips the test and says why."""

    def find(name: str) -> Path:
        path = shared_data_folder() / name
        if not path.exists():
            pytest.skip(f"{path} is missing; set RELAYGR_SHARED to the folder of the shared data sets")
        return path

    return find
