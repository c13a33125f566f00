"""What a call can end in besides its answer; each error carries the request id it belongs to."""

from __future__ import annotations

from relaygr.core.errors import RelayError


class ClientError(RelayError):
    """Base of every error of the client.

    Attributes:
        request_id: as sent in `x-request-id`; the server's log has it too. Empty if nothing was sent.
    """

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(f"{message} (request {request_id})" if request_id else message)
        self.request_id = request_id


class RequestRejectedError(ClientError):
    """The request is wrong, or not allowed, and will be refused again (4xx).

    Attributes:
        field: the input at fault; empty when it is the request as a whole.
        status, code: of the answer; 0 and "client" when the client itself refused it.
        limit: the limit that was passed, if one was.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        status: int = 0,
        code: str = "client",
        limit: int | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message, request_id)
        self.field, self.status, self.code, self.limit = field, status, code, limit


class OverloadedError(ClientError):
    """The server, or the tenant's share of it, has no room now; `retry_after_ms` says when to come again."""

    def __init__(self, message: str, retry_after_ms: float, request_id: str = "") -> None:
        super().__init__(message, request_id)
        self.retry_after_ms = retry_after_ms


class DeadlineExceededError(ClientError):
    """No answer within the deadline, on either side of the connection.

    A call that changes something and is not idempotent may still have been carried out.
    """


class UnavailableError(ClientError):
    """Nobody answered, the connection broke, or the server is starting or stopping.

    Attributes:
        retry_after_ms: when to come again; None when nobody said.
    """

    def __init__(self, message: str, request_id: str = "", retry_after_ms: float | None = None) -> None:
        super().__init__(message, request_id)
        self.retry_after_ms = retry_after_ms


class BadAnswerError(ClientError):
    """The server failed (5xx) or answered something that is not the protocol.

    Attributes:
        status, code: of the answer; the code is empty if it gave none.
    """

    def __init__(self, message: str, *, status: int, code: str = "", request_id: str = "") -> None:
        super().__init__(message, request_id)
        self.status, self.code = status, code
