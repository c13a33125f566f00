"""The settings of the event stream that a server reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError, RequestError
from relaygr.core.ids import check_name

MAX_STREAMS = 64


class StreamConfig(Section, frozen=True, kw_only=True):
    """User events that are read from a stream, besides those that clients send.

    Attributes:
        url: `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, or `rediss://` for TLS; empty reads none.
        streams: keys of the streams; all events of a user are in one of them.
        group: the consumer group; servers of one group share the streams among them.
        consumer: what this server is called in the group; empty takes the name of the host.
        first: where a new group begins: with the oldest entry there is, or with those that come later.
        batch: most entries of a stream that are read, and not yet acknowledged, at once.
        block_ms: how long the server is asked to wait for entries.
        claim_idle_ms: a consumer that was not heard of for so long loses its streams, and what it had read of
            them, to the others.
        appends_max: users whose events are appended at once.
        dead_letter: stream of the entries that are no events; dead_letter_max: about how many it keeps.
        retry_ms, retry_max_ms: the first and the longest pause after a failure.
        timeout_ms: longest wait for the server's answer.
        lag_s: how often the lag is asked for.
    """

    PATH: ClassVar[str] = "stream"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "batch": Range(1, 16_384),
        "block_ms": Range(1, 60_000),
        "claim_idle_ms": Range(100, 3_600_000),
        "appends_max": Range(1, 1024),
        "dead_letter_max": Range(1, 10_000_000),
        "retry_ms": Range(1, 60_000),
        "retry_max_ms": Range(1, 600_000),
        "timeout_ms": Range(1, 600_000),
        "lag_s": Range(0, 3600, open_low=True),
    }

    url: str = ""
    streams: tuple[str, ...] = ("relaygr:events",)
    group: str = "relaygr"
    consumer: str = ""
    first: Literal["oldest", "newest"] = "oldest"
    batch: int = 256
    block_ms: int = 1000
    claim_idle_ms: int = 10_000
    appends_max: int = 16
    dead_letter: str = "relaygr:dead"
    dead_letter_max: int = 10_000
    retry_ms: int = 100
    retry_max_ms: int = 10_000
    timeout_ms: int = 5000
    lag_s: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.streams) <= MAX_STREAMS:
            raise ConfigError(self.key("streams"), f"names {len(self.streams)} streams, limit {MAX_STREAMS}")
        for place, name in enumerate(self.streams):
            self._check_name(f"streams[{place}]", name)
            if name in self.streams[:place]:
                raise ConfigError(self.key(f"streams[{place}]"), f"{name!r} is there twice")
        for field in ("group", "dead_letter", *(("consumer",) if self.consumer else ())):
            self._check_name(field, getattr(self, field))
        if self.dead_letter in self.streams:
            raise ConfigError(
                self.key("dead_letter"), f"{self.dead_letter!r} is one of {self.key('streams')}"
            )
        if self.retry_max_ms < self.retry_ms:
            least = f"at least {self.key('retry_ms')} = {self.retry_ms}"
            raise ConfigError(self.key("retry_max_ms"), f"{self.retry_max_ms} must be {least}")

    def _check_name(self, field: str, name: str) -> None:
        try:
            check_name(field, name)
        except RequestError as error:
            raise ConfigError(self.key(field), error.reason) from error
