"""The one error tree. Every message names the field, the value and the limit."""

from __future__ import annotations


class RelayError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(RelayError):
    """A setting is missing, unknown or out of range; `path` is the dotted path of the bad key."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class RequestError(RelayError):
    """The caller's input is wrong (4xx); `field` names the offending input."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.reason = field, message


class DataError(RelayError):
    """A row of an event file is wrong; carries file, line, column and reason."""

    def __init__(self, file: str, line: int, column: str, reason: str) -> None:
        super().__init__(f"{file}:{line}: column {column!r}: {reason}")
        self.file = file
        self.line = line
        self.column = column
        self.reason = reason


class OverloadError(RelayError):
    """No room now (429 or 503); try again after `retry_after_ms`."""

    def __init__(self, message: str, retry_after_ms: float) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class DeadlineError(RelayError):
    """The deadline passed before there was an answer; nothing was lost, ask again."""


class CancelledError(RelayError):
    """The caller gave up, or the user was deleted, before there was an answer."""


class NotReadyError(RelayError):
    """The component is still starting or already stopping."""


class BackendError(RelayError):
    """A kernel, a device or a file did something it must not."""
