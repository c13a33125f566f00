"""Heads of requests within limits: uvicorn's parser takes headers of any size and waits for them for ever."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
# A server may ignore an upgrade. The parser stops at one and would lose the body behind it.
_UPGRADE = re.compile(rb"(?i)\r\nupgrade:[^\r\n]*(?=\r\n)")
_HEAD_END = b"\r\n\r\n"


def limited(idle_s: float, head_s: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol with limits on heads and trailers.

    Args:
        idle_s: longest wait for the first byte of a connection.
        head_s: longest a client may take to send a head.
    """

    class Limited(HttpToolsProtocol):
        _in_head, _refused = True, False
        _head_bytes = _trailer_bytes = 0
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait(idle_s)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            if self._in_head:
                end = data.find(_HEAD_END)
                head = data if end < 0 else data[: end + 2]
                if b"pgrade:" in head or b"PGRADE:" in head:
                    data = _UPGRADE.sub(b"", head) + data[len(head) :]
                self._head_bytes += len(head)
            super().data_received(data)
            if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

        def on_message_begin(self) -> None:
            self._in_head, self._trailer_bytes = True, 0
            self._wait(head_s)
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            self._in_head = False
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
            self._head_bytes = 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if not self._refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if not self._refused:
                super().on_message_complete()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:
                super().on_header(name, value)
                return
            # A trailer: nothing here reads one.
            self._trailer_bytes += len(name) + len(value)
            if self._trailer_bytes > MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

        def _wait(self, seconds: float) -> None:
            self._stop_waiting()
            late = HTTPStatus.REQUEST_TIMEOUT
            self._patience = asyncio.get_running_loop().call_later(seconds, self._refuse, late)

        def _stop_waiting(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _refuse(self, status: HTTPStatus) -> None:
            self._stop_waiting()
            if self._refused or self.transport.is_closing():
                return
            self._refused = True
            if self._head_bytes:
                line = f"HTTP/1.1 {status.value} {status.phrase}\r\n"
                self.transport.write(f"{line}content-length: 0\r\nconnection: close\r\n\r\n".encode("ascii"))
            self.transport.close()

    return Limited
