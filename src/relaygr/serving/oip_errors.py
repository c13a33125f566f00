"""Errors as the Open Inference Protocol has them."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from relaygr.serving.errors import Problem
from relaygr.serving.exchange import Reply


class OipError(msgspec.Struct, frozen=True):
    error: str


def oip_error(found: Problem, request_id: str) -> Reply:
    """A wrong tensor is a bad request; nothing has a code."""
    status = found.status
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        status = HTTPStatus.BAD_REQUEST
    return Reply.json(OipError(found.message), status, found.headers())
