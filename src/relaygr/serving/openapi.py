"""The OpenAPI document, from the operations and the types of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from relaygr import __version__
from relaygr.serving.endpoint import Operation
from relaygr.serving.oip import OCTETS
from relaygr.serving.oip_errors import OipError, oip_error
from relaygr.serving.oip_rows import Infer
from relaygr.serving.wire import ErrorAnswer

_PLACE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
# Beyond what an operation names: of every one, of those that need a caller, and of those with a body.
_ALWAYS = (400, 500, 503)
_OF_CALLERS = (401, 403, 422, 429)
_OF_BODIES = (408, 413, 415)


def document(operations: Sequence[Operation]) -> bytes:
    """OpenAPI 3.1 as JSON."""
    types = {kind for one in operations for kind in (_body(one), one.answer) if kind is not None}
    kinds = sorted({*types, ErrorAnswer, OipError}, key=lambda kind: str(kind.__name__))
    references, components = msgspec.json.schema_components(kinds, ref_template=_PLACE)
    schemas = dict(zip(kinds, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(_PARAMETER.sub(r"{\1}", one.path), {})[one.method.lower()] = _operation(one, schemas)
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "relaygr", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(whole)


def _body(one: Operation) -> Any:
    return Infer if one.body is bytes else one.body


def _operation(one: Operation, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{one.method.lower()}{one.path}").strip("_"),
        "summary": one.summary,
        "security": [] if one.open else [{"key": []}, {}],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in _PARAMETER.findall(one.path)
        ],
        "responses": _responses(one, schemas),
    }
    body = _body(one)
    if body is not None:
        content = {"application/json": {"schema": schemas[body]}}
        found["requestBody"] = {"required": not one.optional, "content": content}
    return found


def _responses(one: Operation, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {
        one.content_type: {} if one.answer is None else {"schema": schemas[one.answer]}
    }
    if one.body is bytes:
        content[OCTETS] = {}
    found: dict[str, Any] = {"200": {"description": "done", "content": content}}
    error = schemas[OipError if one.shape is oip_error else ErrorAnswer]
    statuses = {*_ALWAYS, *one.errors}
    if not one.open:
        statuses.update(_OF_CALLERS)
    if one.body is not None:
        statuses.update(_OF_BODIES)
    if one.admin:
        statuses.add(403)
    for status in sorted(statuses):
        found[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": error}},
        }
    return found
