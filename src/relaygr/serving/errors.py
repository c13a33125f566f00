"""Errors as HTTP answers: each has one status and one code, whoever raised it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from relaygr.core.errors import (
    BackendError,
    CancelledError,
    ConfigError,
    DeadlineError,
    NotReadyError,
    OverloadError,
    RelayError,
    RequestError,
)
from relaygr.generation.errors import ErrorCode, GenerateError
from relaygr.serving.wire import ErrorAnswer, ErrorDetail

DEFAULT_RETRY_MS = 1000.0


class HttpError(RelayError):
    """A request that HTTP itself refuses: its path, its headers, its body as bytes.

    Attributes:
        field: the header or part at fault; empty for none.
        limit: the limit that was passed, if one was.
        close: whether the rest of the request is not worth reading.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str = "",
        limit: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field, self.limit, self.close = status, code, field, limit, close


class TenantBusyError(OverloadError):
    """A tenant has as many requests in progress as it may; other tenants are served."""

    def __init__(self, tenant: str, limit: int) -> None:
        super().__init__(f"tenant {tenant!r} has {limit} requests in progress, limit {limit}", 100.0)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it is answered.

    Attributes:
        retry_after_ms: when to come again; None says nothing about it.
    """

    status: int
    code: str
    message: str
    field: str = ""
    limit: int | None = None
    retry_after_ms: float | None = None
    close: bool = False

    def answer(self, request_id: str) -> ErrorAnswer:
        detail = ErrorDetail(self.code, self.message, self.field, request_id, self.limit, self.retry_after_ms)
        return ErrorAnswer(detail)

    def headers(self) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        if self.retry_after_ms is not None:
            found.append((b"retry-after", b"%d" % math.ceil(self.retry_after_ms / 1000)))
        if self.status == HTTPStatus.UNAUTHORIZED:
            found.append((b"www-authenticate", b"Bearer"))
        if self.close:
            found.append((b"connection", b"close"))
        return found


_CODES: tuple[tuple[type[RelayError], int, str], ...] = (
    (DeadlineError, HTTPStatus.GATEWAY_TIMEOUT, "deadline"),
    (CancelledError, HTTPStatus.CONFLICT, "cancelled"),
    (ConfigError, HTTPStatus.UNPROCESSABLE_ENTITY, "model"),
    (BackendError, HTTPStatus.INTERNAL_SERVER_ERROR, "backend"),
)


_GENERATION: Mapping[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.TOO_LONG: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.TOO_WIDE: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.KV_BUDGET: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.QUEUE_FULL: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.DEADLINE: HTTPStatus.GATEWAY_TIMEOUT,
    ErrorCode.CANCELLED: HTTPStatus.CONFLICT,
    ErrorCode.CATALOG_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}


def _of_generation(error: GenerateError) -> Problem:
    status = _GENERATION.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    retry_ms = error.retry_after_ms or DEFAULT_RETRY_MS
    limit = None if error.limit is None else int(error.limit)
    again = retry_ms if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return Problem(status, error.code.value, str(error), error.field, limit, again)


def problem(error: RelayError) -> Problem:
    """How an error is answered; one that nobody expected is an internal one."""
    text = str(error)
    if isinstance(error, GenerateError):
        return _of_generation(error)
    if isinstance(error, HttpError):
        return Problem(error.status, error.code, text, error.field, error.limit, close=error.close)
    if isinstance(error, RequestError):
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "request", text, error.field)
    if isinstance(error, TenantBusyError):
        status = HTTPStatus.TOO_MANY_REQUESTS
        return Problem(status, "tenant_busy", text, "", error.limit, error.retry_after_ms)
    if isinstance(error, OverloadError):
        status = HTTPStatus.SERVICE_UNAVAILABLE
        return Problem(status, "overload", text, retry_after_ms=error.retry_after_ms)
    if isinstance(error, NotReadyError):
        status = HTTPStatus.SERVICE_UNAVAILABLE
        return Problem(status, "not_ready", text, retry_after_ms=DEFAULT_RETRY_MS)
    for kind, code_of, code in _CODES:
        if isinstance(error, kind):
            return Problem(code_of, code, text)
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", text)
