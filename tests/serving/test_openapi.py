"""The OpenAPI document says every answer there is; schemathesis looks for one that it does not say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks
from serving_apps import App, running
from serving_apps import settings as serving_settings

from relaygr.serving.app import OPERATIONS
from relaygr.serving.endpoint import Operation

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def served(model_folder: Path) -> Iterator[App]:
    with running(serving_settings(model_folder)) as found:
        yield found


@pytest.fixture(scope="module")
def document(served: App) -> dict[str, Any]:
    found: dict[str, Any] = served.call("GET", "/openapi.json").json()
    return found


def path_of(operation: Operation) -> str:
    return operation.path.replace(":name", "")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_generated_requests(served: App, document: dict[str, Any], operation: Operation) -> None:
    """Right and wrong requests: no 5xx but a deadline that was named, no answer that is not written down."""
    described = schemathesis.openapi.from_dict(document)[path_of(operation)][operation.method]

    # What has no body cannot be made wrong.
    modes = [*GenerationMode] if operation.body is not None else [GenerationMode.POSITIVE]
    for mode in modes:

        @settings(
            max_examples=12 if operation.body is not None else 4,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=described.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            answer = send(served, case)
            assert answer.status_code < 500 or answer.status_code == 504, answer.text
            case.validate_response(answer, checks=CHECKS)

        ask()


def send(app: App, case: schemathesis.Case) -> httpx.Response:
    if "name" in case.path_parameters:
        case.path_parameters["name"] = "ranker"  # one that exists, or nothing behind it is reached
    sent = case.as_transport_kwargs(base_url="http://test")
    return app.call(
        sent["method"],
        sent["url"],
        sent.get("json"),
        headers=sent["headers"],
        params=sent.get("params"),
        content=sent.get("data"),
    )


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == {(one.method, path_of(one)) for one in OPERATIONS}
    for item in document["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            assert "200" in operation["responses"]
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(ids)) == len(ids)
