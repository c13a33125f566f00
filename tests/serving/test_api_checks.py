"""One server does what `api_checks` says; `test_ray_cluster` lets a cluster do the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api_checks import CHECKS, Check
from serving_apps import server


@pytest.fixture(scope="module")
def client(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with server(tmp_path_factory.mktemp("single"), model_folder) as found, found.client() as client:
        yield client


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_server(client: httpx.Client, check: Check) -> None:
    check(client)
