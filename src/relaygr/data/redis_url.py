"""Places of Redis servers, as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit

from relaygr.core.errors import ConfigError


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
