"""What both clients are built from: address, headers and limits, checked once."""

from __future__ import annotations

import functools
import random
import ssl
from dataclasses import dataclass, field

import httpx

from relaygr.client.calls import check_ms
from relaygr.client.errors import RequestRejectedError
from relaygr.client.exchange import Terms, check_header
from relaygr.client.retry import RetryBudget, RetryPolicy
from relaygr.core.ids import DEFAULT_TENANT

DEFAULT_TIMEOUT_MS = 10_000.0
DEFAULT_CONNECT_MS = 1_000.0
DEFAULT_CONNECTIONS = 64
MAX_ANSWER_BYTES = 64 << 20


@functools.cache
def trusted() -> ssl.SSLContext:
    """What all clients of a process trust: the certificates that httpx brings, which take 20 ms to read."""
    return httpx.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True)
class Door:
    """Where to knock, and how.

    Attributes:
        url: scheme, host, port and, behind a gateway, a path in front of the protocol's own.
        api_key: sent as a bearer token. tenant: sent in `x-tenant`, for servers without keys.
        timeout_ms: of a call without a deadline; connect_ms: of one attempt to connect.
        connections: kept open and in use at once; a call waits for a free one within its own time. Prefix
            signals have as many of their own.
        answer_bytes: longest answer that is read.
        sessions: send `x-session-id`, made of tenant and user as the gateway makes it, for what sends every
            user to one instance by a header, as Envoy does.

    Raises:
        RequestRejectedError: naming the field, the value (never the key) and the limit.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    tenant: str | None = None
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    connect_ms: float = DEFAULT_CONNECT_MS
    connections: int = DEFAULT_CONNECTIONS
    answer_bytes: int = MAX_ANSWER_BYTES
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    sessions: bool = False

    def __post_init__(self) -> None:
        check_ms("timeout_ms", self.timeout_ms)
        check_ms("connect_ms", self.connect_ms)
        for name, value in (("connections", self.connections), ("answer_bytes", self.answer_bytes)):
            if not 1 <= value <= 1 << 40:
                raise RequestRejectedError(f"{name}: {value} is outside [1, {1 << 40}]", field=name)
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError) as error:
            raise RequestRejectedError(f"url: {self.url!r}: {error}", field="url") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise RequestRejectedError(f"url: {self.url!r} must be http://HOST:PORT or https://", field="url")

    @property
    def headers(self) -> dict[str, str]:
        headers = {"accept": "application/json", "user-agent": "relaygr-client"}
        if self.api_key is not None:
            headers["authorization"] = "Bearer " + check_header("api_key", self.api_key)
        if self.tenant is not None:
            headers["x-tenant"] = check_header("tenant", self.tenant)
        return headers

    @property
    def limits(self) -> httpx.Limits:
        return httpx.Limits(max_connections=self.connections, max_keepalive_connections=self.connections)

    @property
    def terms(self) -> Terms:
        """The shared part of all calls; a new budget each time."""
        return Terms(
            policy=self.retries,
            budget=RetryBudget(self.retries),
            timeout_ms=self.timeout_ms,
            connect_ms=self.connect_ms,
            answer_bytes=self.answer_bytes,
            rng=random.Random(),
            sessions_of=(self.tenant or DEFAULT_TENANT) if self.sessions else None,
        )
