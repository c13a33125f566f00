"""Slates of items that the server's own generator proposes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generation_apps import ITEMS, generating
from msgspec.structs import replace
from serving_apps import App, error_of, events, running
from slate_apps import item_arrays, slated

USER = {"user": "ann", "seed": 7, "length": 5}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder: Path = tmp_path_factory.mktemp("generated")
    config = replace(
        slated(folder, generate_items=40),
        generator=generating(folder / "of", max_beam_width=64, beam_width=32).generator,
    )
    with running(config) as app:
        app.post("/v1/events", {"user": "ann", **events(30, 1), "items": list(range(1, 31))})
        yield app


def test_candidates_are_the_generators_items_and_the_list_is_theirs(app: App) -> None:
    before = app.service.engine.stats().candidates
    answer = app.post("/v1/slate", USER)
    generated = answer["generated"]
    assert 5 <= len(generated) == len(set(generated)) <= 40
    assert set(generated) <= set(range(1, ITEMS + 1))
    # Each of them was ranked once.
    assert app.service.engine.stats().candidates - before == len(generated)
    assert len(answer["items"]) == 5 == len(set(answer["items"]))
    assert answer["items"] == [generated[pick["candidate"]] for pick in answer["picks"]]
    assert answer["fallback_reason"] is None
    assert answer["stage_reached"] == "evaluation"
    authors = item_arrays()["author"][np.array(answer["items"]) - 1].tolist()
    assert all(authors[t] not in authors[t + 1 : t + 3] for t in range(4))


def test_they_are_what_v1_generate_says(app: App) -> None:
    rows = app.post("/v1/generate", {"user": "ann", "max_items": 40, "seed": 7})["results"]
    wanted = list(dict.fromkeys(item for row in rows for item in row["items"]))[:40]
    assert app.post("/v1/slate", USER)["generated"] == wanted


def test_the_same_candidates_sent_by_the_caller_give_the_same_list(app: App) -> None:
    first = app.post("/v1/slate", USER)
    again = app.post("/v1/slate", {**USER, "candidates": first["generated"]})
    assert again.get("generated") is None
    for name in ("items", "picks", "generator", "utility", "lists", "versions"):
        assert again[name] == first[name], name


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"history": {"items": [1, 2], "timestamps": [1, 2]}}, "stored histories only"),
        ({"attributes": {"author": [1]}}, "attributes or vectors"),
        ({"vectors": [[0.5] * 8]}, "attributes or vectors"),
    ],
)
def test_what_cannot_be_generated_is_told(app: App, change: dict[str, Any], part: str) -> None:
    error = error_of(app.call("POST", "/v1/slate", {**USER, **change}), 422, "request", "candidates")
    assert part in error["message"], json.dumps(error)


def test_a_server_without_a_generator_says_so(app: App, tmp_path: Path) -> None:
    with running(slated(tmp_path)) as other:
        other.post("/v1/events", {"user": "ann", **events(30, 1)})
        error = error_of(other.call("POST", "/v1/slate", USER), 422, "request", "candidates")
        assert "no generator" in error["message"]
