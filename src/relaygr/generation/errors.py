"""What may become of a request other than a result; each kind has one code."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from relaygr.core.errors import (
    BackendError,
    CancelledError,
    DeadlineError,
    NotReadyError,
    OverloadError,
    RelayError,
    RequestError,
)


class ErrorCode(StrEnum):
    INVALID_REQUEST = "invalid_request"
    TOO_LONG = "too_long"
    TOO_WIDE = "too_wide"
    KV_BUDGET = "kv_budget"
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    CATALOG_UNAVAILABLE = "catalog_unavailable"
    FILTER_ERROR = "filter_error"
    MODEL_NAN = "model_nan"
    INTERNAL = "internal"


class GenerateError(RelayError):
    """A request ended without a result.

    Attributes:
        code: which of the kinds; one a class.
        request_id: whose request.
        reason: the message without the field.
        field: the input at fault; empty if none is.
        limit: the limit that was hit, if a number helps.
        retry_after_ms: when asking again makes sense; 0 if it is unknown or does not.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(
        self,
        request_id: str,
        message: str,
        *,
        field: str = "",
        limit: float | None = None,
        retry_after_ms: float = 0.0,
    ) -> None:
        # The bases differ in what they take, and all they add are the attributes below.
        Exception.__init__(self, f"{field}: {message}" if field else message)
        self.request_id, self.reason = request_id, message
        self.field, self.limit, self.retry_after_ms = field, limit, retry_after_ms


class InvalidRequestError(GenerateError, RequestError):
    code = ErrorCode.INVALID_REQUEST


class TooLongError(InvalidRequestError):
    """The prompt can never fit."""

    code = ErrorCode.TOO_LONG


class TooWideError(InvalidRequestError):
    """The beams can never fit."""

    code = ErrorCode.TOO_WIDE


class KvBudgetError(InvalidRequestError):
    """The keys and values of prompt and beams can never fit."""

    code = ErrorCode.KV_BUDGET


class QueueFullError(GenerateError, OverloadError):
    code = ErrorCode.QUEUE_FULL


class GenerateDeadlineError(GenerateError, DeadlineError):
    code = ErrorCode.DEADLINE


class GenerateCancelledError(GenerateError, CancelledError):
    code = ErrorCode.CANCELLED


class CatalogUnavailableError(GenerateError, NotReadyError):
    """No catalogue version serves."""

    code = ErrorCode.CATALOG_UNAVAILABLE


class FilterFailedError(GenerateError, BackendError):
    """A filter or the catalogue gave an impossible answer; nothing is decoded without it."""

    code = ErrorCode.FILTER_ERROR


class ModelNanError(GenerateError, BackendError):
    """The model gave NaN or +inf for this request."""

    code = ErrorCode.MODEL_NAN


class InternalError(GenerateError, BackendError):
    code = ErrorCode.INTERNAL
