"""One HTTP request of a load, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from relaygr.core.errors import BackendError

_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Sent:
    """An answer, or what happened instead: `timeout` or `connection`; `status` is 0 then."""

    status: int
    body: bytes
    trouble: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def what(self) -> str:
        """How it is counted when it is not ok."""
        return self.trouble or str(self.status)


class Wire:
    """Kept connections to one server; `async with` closes them.

    Nothing is sent twice: a failure is an observation. Redirects are not followed, proxies not used.
    """

    def __init__(
        self, url: str, connections: int, timeout_ms: float, *, api_key: str = "", tenant: str = ""
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = dict(_JSON)
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        if tenant:
            self._headers["x-tenant"] = tenant
        self._connections = connections
        self._timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # One above what is ever in use, so that no request waits here for a connection.
        connector = aiohttp.TCPConnector(limit=self._connections + 1, keepalive_timeout=30.0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, headers=self._headers, trust_env=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, method: str, path: str, body: bytes | None = None) -> Sent:
        """Never raises for what the other side does."""
        assert self._session is not None
        try:
            async with self._session.request(
                method, self._url + path, data=body, allow_redirects=False
            ) as response:
                return Sent(response.status, await response.read())
        except TimeoutError:
            return Sent(0, b"", "timeout")
        except aiohttp.ClientError:
            return Sent(0, b"", "connection")

    async def demand(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of an answer that has to be good.

        Raises:
            BackendError: with the status and what the server said.
        """
        sent = await self.send(method, path, body)
        if not sent.ok:
            said = sent.body[:300].decode(errors="replace")
            raise BackendError(f"{method} {path}: {sent.what} {said}".rstrip())
        return sent.body


class ServedBy(msgspec.Struct, frozen=True):
    """What a load reads of a ranking."""

    path: str
    tokens_cached: int
    served_tokens: int
    model: str


class Admitted(msgspec.Struct, frozen=True):
    """What a load reads of a prefix signal."""

    admission: str


READ_RANKING = msgspec.json.Decoder(ServedBy)
READ_PREFIX = msgspec.json.Decoder(Admitted)
