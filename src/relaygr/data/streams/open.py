"""Opens an event stream by its URL."""

from __future__ import annotations

from relaygr.config.stream import StreamConfig
from relaygr.core.errors import ConfigError
from relaygr.data.streams.interface import EventStream
from relaygr.data.streams.redis import RedisStream


def open_stream(settings: StreamConfig) -> EventStream:
    """The streams at `settings.url`; connects with the first call, the caller closes it.

    Raises:
        ConfigError: of `stream.url`: no such form, or a package is missing (named with its extra).
    """
    scheme, separator, _ = settings.url.partition("://")
    if separator and scheme in ("redis", "rediss"):
        return RedisStream(settings)
    # What is shown has no password in it, whatever the form.
    shown = f"{scheme}://..." if separator else "a text without ://"
    raise ConfigError("stream.url", f"{shown} is not redis://HOST:PORT/DB")
