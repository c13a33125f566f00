"""One HTTP request and its answer as bytes: ids, bodies within limits, JSON."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from relaygr.core.errors import RelayError
from relaygr.core.excerpt import excerpt
from relaygr.serving.errors import HttpError, Problem

JSON = b"application/json"
REQUEST_ID = "relaygr.request_id"
ROUTE = "relaygr.route"
TIMINGS = "relaygr.timings"
ERROR = "relaygr.error"
MESSAGE = "relaygr.message"

# A message of msgspec, and the place of what is wrong.
_PLACE = re.compile(r"(.*) - at (?:`key` in )?`\$([^`]*)`", re.DOTALL)
_Body = TypeVar("_Body")
_GIVEN_ID = re.compile(r"[!-~]{1,128}")
_encoder = msgspec.json.Encoder()
_process = os.urandom(6).hex()
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its status, its bytes and what they are."""

    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: Sequence[tuple[bytes, bytes]] = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> Reply:
        return cls(_encoder.encode(value), status, JSON, headers)

    @classmethod
    def problem(cls, found: Problem, request_id: str) -> Reply:
        return cls.json(found.answer(request_id), found.status, found.headers())

    async def send(self, send: Send) -> None:
        headers = [
            (b"content-type", self.content_type),
            (b"content-length", b"%d" % len(self.body)),
            *self.headers,
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def request_id(headers: Headers) -> str:
    """The id that the client gave, or a new one; an id that is not short and printable is replaced."""
    given = headers.get("x-request-id")
    if given is not None and _GIVEN_ID.fullmatch(given):
        return given
    return f"{_process}-{next(_numbers)}"


def check_path(scope: Scope) -> None:
    """HttpError for a path that is not UTF-8, which has been decoded to something else by now."""
    if "\ufffd" in scope["path"]:
        try:
            unquote_to_bytes(scope.get("raw_path") or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            raise HttpError(
                HTTPStatus.BAD_REQUEST, "path", f"the path is not UTF-8: {error.reason}"
            ) from error


def check_type(headers: Headers, wanted: Sequence[str]) -> None:
    """HttpError 415 unless the body is plain and of a wanted type; a body of no named type passes."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "encoding",
            f"content-encoding {coding[:64]!r} is not read, send the body as it is",
            field="content-encoding",
            close=True,
        )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind not in wanted:
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "type",
            f"content-type {kind[:64]!r} is not {' or '.join(wanted)}",
            field="content-type",
            close=True,
        )


async def read_body(headers: Headers, receive: Receive, limit: int, timeout_s: float) -> bytes:
    """The whole body, refused as soon as it is known to be larger than `limit`.

    Raises:
        HttpError: 413 too large, 408 too slow, 400 the client went away before its end.
    """
    declared = headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(declared[:24], limit)
    try:
        async with asyncio.timeout(timeout_s):
            return await _gather(await receive(), receive, limit)
    except TimeoutError as error:
        raise HttpError(
            HTTPStatus.REQUEST_TIMEOUT, "body_slow", f"the body took longer than {timeout_s:g} s", close=True
        ) from error


async def _gather(message: Any, receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise HttpError(HTTPStatus.BAD_REQUEST, "body_cut", "the client went away before the body's end")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(f"more than {limit}", limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def _too_large(size: str, limit: int) -> HttpError:
    return HttpError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body_size",
        f"the body has {size} bytes, limit {limit}",
        field="content-length",
        limit=limit,
        close=True,
    )


def decode(decoder: msgspec.json.Decoder[_Body], data: bytes) -> _Body:
    """The body as what it must be.

    Raises:
        HttpError: 400, not JSON; 422, JSON with something wrong in it, whose place is the field.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        # The last one: a name that was sent may hold anything.
        told = _PLACE.fullmatch(str(error))
        message = excerpt(told[1] if told else str(error))
        field = told[2].lstrip(".") if told else ""
        text = f"{field}: {message}" if field else message
        raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, "request", text, field=field) from error
    except msgspec.DecodeError as error:
        text = f"the body is not JSON: {excerpt(str(error))}"
        raise HttpError(HTTPStatus.BAD_REQUEST, "json", text) from error
    except RecursionError as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, "json", "the body is nested too deeply") from error


class Gone:
    """Returns when the client has disconnected; for a request whose body was read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def __call__(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def internal_error(error: Exception) -> Problem:
    """What is said of an error that nobody foresaw: not what it is."""
    kind = "" if isinstance(error, RelayError) else f" ({type(error).__name__})"
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", f"an internal error{kind}")
