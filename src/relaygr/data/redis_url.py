"""Places of Redis servers, as they may be shown, and errors that name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from relaygr.core.errors import BackendError, ConfigError, OverloadError

Errors = tuple[type[Exception], ...]

_RETRY_MS = 1000.0


def place_of(url: str, setting: str) -> str:
    """`url` without its password.

    Raises:
        ConfigError: of `setting`: no such URL, or one with options, which would change how we talk to it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(setting, f"not a URL: {error}") from error
    place = f"{parts.scheme}://{host or 'localhost'}:{port or 6379}{parts.path}"
    if parts.query or parts.fragment:
        raise ConfigError(setting, f"{place} must have no options behind its path")
    database = parts.path.removeprefix("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ConfigError(setting, f"{place}: the path must be the number of a database")
    return place


@contextmanager
def named_errors(name: str, unreachable: Errors, broken: type[Exception]) -> Iterator[None]:
    """What a client of the server `name` raises, as errors of this project.

    Raises:
        OverloadError: it cannot be reached; it may be back in a moment.
        BackendError: it refuses what it is asked.
    """
    try:
        yield
    except unreachable as error:
        raise OverloadError(f"{name} cannot be reached: {error}", _RETRY_MS) from error
    except broken as error:
        raise BackendError(f"{name}: {error}") from error
