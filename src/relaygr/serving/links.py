"""Connections to the members of a fleet: a request goes on as it came, its answer comes back as bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from relaygr.core.errors import RelayError
from relaygr.serving.errors import HttpError

# Of one connection each, or made anew on the next.
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
        *(b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"host", b"content-length"),
    )
)
_NOT_BACK = frozenset((*_HOP_BY_HOP, b"date", b"server"))
# Shorter than servers keep theirs, so that a connection is rarely used just as it is closed.
_IDLE_S = 10.0
Pairs = list[tuple[bytes, bytes]]


class AwayError(RelayError):
    """The member did not answer.

    Attributes:
        refused: nothing listens there.
        sent: it may have received the request, and done it.
        busy: it lives and has no room, which says nothing about the next request.
        silent: it was given up, not broken: it may only be slow.
    """

    def __init__(
        self,
        member: str,
        reason: str,
        *,
        refused: bool,
        sent: bool,
        busy: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(f"{member}: {reason}")
        self.refused, self.sent, self.busy, self.silent = refused, sent, busy, silent


@dataclass(frozen=True, slots=True)
class Letter:
    """A request to send on.

    Attributes:
        target: path and query, as they came.
        headers: those that go on, without what the routes add.
    """

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member answered; `headers` are those that go back."""

    status: int
    headers: Pairs
    body: bytes


class Transport(Protocol):
    """A way to members; belongs to one event loop, opened in it."""

    def open(self) -> None: ...

    async def close(self) -> None: ...

    async def send(
        self,
        member: str,
        url: str,
        sent: Letter,
        more: Mapping[str, str] = {},
        timeout_s: float | None = None,
    ) -> Answer:
        """Send and wait for the whole answer; cancelling this gives the request up.

        Args:
            url: of the member.
            more: further headers.
            timeout_s: for everything; None waits as long as the member lives.

        Raises:
            AwayError: there was no answer.
        """


def letter(
    method: str,
    raw_path: bytes,
    query: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
    own: Mapping[str, str],
    without: Collection[str] = (),
) -> Letter:
    """A request as it is sent on.

    Args:
        own: headers, in small letters, that take the place of the client's.
        without: headers of the client's that do not go on.

    Raises:
        HttpError: 400, a header is not UTF-8, so that it could not be sent on as it is.
    """
    kept: CIMultiDict[str] = CIMultiDict(own)
    replaced = {name.encode() for name in (*own, *without)}
    for name, value in headers:
        if name in _HOP_BY_HOP or name in replaced:
            continue
        try:
            kept.add(name.decode("ascii"), value.decode("utf-8"))
        except UnicodeDecodeError as error:
            shown = name.decode("latin-1")[:64]
            raise HttpError(
                HTTPStatus.BAD_REQUEST, "header", f"header {shown!r} is not UTF-8", field=shown
            ) from error
    target = raw_path.decode("latin-1") + (f"?{query.decode('latin-1')}" if query else "")
    return Letter(method, target, kept, body)


class Links(Transport):
    """Connections that are kept."""

    def __init__(self, connect_s: float, connections: int) -> None:
        """
        Args:
            connect_s: longest wait for a connection.
            connections: most to one member; further requests wait for one.
        """
        self._connect_s, self._connections = connect_s, connections
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, limit_per_host=self._connections, keepalive_timeout=_IDLE_S, ttl_dns_cache=10
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        member: str,
        url: str,
        sent: Letter,
        more: Mapping[str, str] = {},
        timeout_s: float | None = None,
    ) -> Answer:
        """As `Transport` says; cancelling this closes the connection."""
        assert self._session is not None
        headers = sent.headers
        if more:
            headers = CIMultiDict(headers)
            headers.update(more)
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_s)
        try:
            async with self._session.request(
                sent.method,
                URL(url + sent.target, encoded=True),
                headers=headers,
                data=sent.body or None,
                allow_redirects=False,
                timeout=limit,
            ) as answer:
                body = await answer.read()
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            raise AwayError(member, str(error), refused=refused, sent=False) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise AwayError(member, "no connection in time", refused=False, sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AwayError(member, str(error) or type(error).__name__, refused=False, sent=True) from error
        back = [(name.lower(), value) for name, value in answer.raw_headers]
        return Answer(answer.status, [pair for pair in back if pair[0] not in _NOT_BACK], body)
