"""docs/protocol.md is true: its examples run, and its lists of settings, codes and routes are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from generation_apps import generating
from serving_apps import running, settings
from slate_apps import slated

from relaygr.config.settings import Config
from relaygr.config.slate import SlateConfig
from relaygr.serving.app import OPERATIONS

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "protocol.md").read_text()
EXAMPLE = re.compile(r"```http\n(\w+) (\S+)\n(.*?)-> (\d+)\n(.*?)```", re.DOTALL)
SOURCES = Path(__file__).parents[2] / "src" / "relaygr" / "serving"


def alike(documented: Any, got: Any, place: str = "answer") -> None:
    """What is written is what comes; "*" stands for anything."""
    if documented == "*":
        assert got is not None, place
    elif isinstance(documented, dict):
        assert isinstance(got, dict)
        assert sorted(documented) == sorted(got), place
        for key, value in documented.items():
            alike(value, got[key], f"{place}.{key}")
    elif isinstance(documented, list):
        assert len(documented) == len(got), place
        for number, value in enumerate(documented):
            alike(value, got[number], f"{place}[{number}]")
    else:
        assert documented == got, place


def test_examples_in_the_order_they_are_written(model_folder: Path) -> None:
    examples = EXAMPLE.findall(TEXT)
    assert len(examples) == TEXT.count("```http")
    assert len(examples) >= 12
    with running(settings(model_folder)) as app:
        for method, path, body, status, answer in examples:
            got = app.call(method, path, json.loads(body) if body.strip() else None)
            assert got.status_code == int(status), (method, path, got.text)
            alike(json.loads(answer), got.json(), f"{method} {path}")


def test_examples_of_generation(tmp_path: Path) -> None:
    text = (DOCS / "generation.md").read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```http") >= 4
    with running(generating(tmp_path)) as app:
        for method, path, body, status, answer in examples:
            got = app.call(method, path, json.loads(body) if body.strip() else None)
            assert got.status_code == int(status), (method, path, got.text)
            alike(json.loads(answer), got.json(), f"{method} {path}")


def test_examples_of_slates(tmp_path: Path) -> None:
    text = (DOCS / "slate.md").read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```http") >= 1
    with running(slated(tmp_path)) as app:
        for method, path, body, status, answer in examples:
            got = app.call(method, path, json.loads(body) if body.strip() else None)
            assert got.status_code == int(status), (method, path, got.text)
            alike(json.loads(answer), got.json(), f"{method} {path}")


def test_settings_of_slates_are_described() -> None:
    text = (DOCS / "slate.md").read_text()
    table = text[text.index("## Over HTTP") :]
    for name in SlateConfig.__struct_fields__:
        assert f"`{name}`" in table, name


def test_a_wrong_example_would_be_noticed() -> None:
    with pytest.raises(AssertionError):
        alike({"a": 1}, {"a": 2})
    with pytest.raises(AssertionError):
        alike({"a": "*"}, {"a": 1, "b": 2})
    with pytest.raises(AssertionError):
        alike([1], [1, 2])


def test_settings_that_are_named_exist() -> None:
    config = Config()
    named = set(re.findall(r"`(serving|scheduler|engine|store)\.(\w+)`", TEXT))
    assert len(named) >= 15
    for section, name in named:
        assert hasattr(getattr(config, section), name), f"{section}.{name}"


def test_every_route_is_described() -> None:
    for operation in OPERATIONS:
        path = operation.path.replace(":name", "").replace("/v2/models/{name}/versions/{version}", "...")
        short = re.sub(r"^/v2/models/\{name\}/", ".../", path).replace("{user}", "u1")
        assert any(text in TEXT for text in (path, short, short.replace("u1", "u3"))), operation.path


def test_every_error_code_is_described() -> None:
    source = "".join(file.read_text() for file in SOURCES.glob("*.py"))
    codes = set(re.findall(r'HTTPStatus\.\w+,\s*"(\w+)"', source))
    codes |= set(re.findall(r'(?:HttpError|Problem)\(\s*(?:\d+|status),\s*"(\w+)"', source))
    documented = set(re.findall(r"`(\w+)`", TEXT[TEXT.index("## Errors") : TEXT.index("## Open Inference")]))
    # Of the Open Inference Protocol, which sends the message only.
    assert codes - documented <= {"header_length", "model_changed"}
    assert {"deadline", "backend", "overload", "not_ready", "tenant_busy", "request"} <= codes
