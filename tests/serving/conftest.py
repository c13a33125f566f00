"""A model on disk and an application that tests share; each test takes users of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_apps import App, running, save_model, settings


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served-model")
    save_model(folder)
    return folder


@pytest.fixture(scope="module")
def app(model_folder: Path) -> Iterator[App]:
    with running(settings(model_folder, body_limit_bytes=1 << 20, max_candidates=600)) as found:
        yield found
