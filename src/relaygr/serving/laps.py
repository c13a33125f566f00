"""What a request is for and whose it is: the little that a router reads of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.datastructures import Headers

from relaygr.core.errors import RelayError
from relaygr.core.ids import session_key
from relaygr.relay.route import Lap
from relaygr.serving.auth import Gatekeeper

SESSION = "x-session-id"
OWNER = "x-relay-owner"
EPOCH = "x-relay-epoch"
HOP = "x-relay-hop"
MOVED = "x-relay-moved"
LAPS = frozenset((Lap.PREFIX, Lap.RANK))

_SESSION_ID = re.compile(r"[!-~]{1,128}")
_USER_PATH = "/v1/users/"
_INFER = re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/infer")
_HEADER_LENGTH = "inference-header-content-length"
_LENGTH_BYTES = 4
_SAFE = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))


@dataclass(frozen=True, slots=True)
class Kind:
    """What a request is for.

    Attributes:
        route: the pattern of its path, for logs.
        lap: None for a request that is of no user.
        everyone: all members have to hear of it.
        repeatable: doing it twice is as good as once; of events, only with a key or a source.
    """

    route: str
    lap: Lap | None
    everyone: bool = False
    repeatable: bool = True


_BODIES = {
    "/v1/rank": Kind("/v1/rank", Lap.RANK),
    "/v1/prefix": Kind("/v1/prefix", Lap.PREFIX),
    "/v1/events": Kind("/v1/events", Lap.OTHER, repeatable=False),
    "/v1/generate": Kind("/v1/generate", Lap.OTHER),
    "/v1/slate": Kind("/v1/slate", Lap.RANK),
    **{
        path: Kind(path, None, everyone=True)
        for path in (
            "/v1/models/reload",
            "/v1/catalogues/load",
            "/v1/catalogues/rollback",
            "/v1/catalogues/withdraw",
            "/v1/catalogues/restore",
            "/v1/slate/mode",
            "/v1/slate/outcomes",
        )
    },
}
_STATE = Kind("/v1/users/{user:name}/state", Lap.OTHER)
_PROFILE = Kind("/v1/users/{user:name}/profile", Lap.OTHER)
_DELETE = Kind("/v1/users/{user:name}", Lap.OTHER, everyone=True)
_TIMED = frozenset(("/v1/rank", "/v1/prefix", "/v1/generate", "/v1/slate"))
_DEADLINE, _TIMEOUT = b'"deadline_ms"', b'"timeout"'
_INFERENCE = Kind("/v2/models/{name}/infer", Lap.RANK)


def kind_of(method: str, path: str) -> Kind:
    """What a request of this method and path is for; whatever is not known is of no user."""
    if method == "POST":
        found = _BODIES.get(path)
        if found is not None:
            return found
        if path.startswith("/v2/") and _INFER.fullmatch(path):
            return _INFERENCE
    elif path.startswith(_USER_PATH):
        if method == "DELETE":
            return _DELETE
        if method == "GET" and path.endswith("/state"):
            return _STATE
        if method == "PUT" and path.endswith("/profile"):
            return _PROFILE
    return Kind("forwarded", None, repeatable=method in _SAFE)


@dataclass(frozen=True, slots=True)
class Whose:
    """The user of a request as a key, and whether the request itself says that it may be repeated."""

    key: str
    repeatable: bool = False


class Keys:
    """Finds out whose a request is."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper

    def find(self, kind: Kind, headers: Headers, path: str, body: bytes) -> Whose | None:
        """None where the request does not say it as it should: any instance tells what is wrong with it."""
        try:
            tenant = self._gatekeeper.caller(headers).tenant
            return self._find(kind, headers, path, body, tenant)
        except (RelayError, msgspec.MsgspecError, RecursionError, ValueError):
            return None

    def _find(self, kind: Kind, headers: Headers, path: str, body: bytes, tenant: str) -> Whose:
        given = headers.get(SESSION, "")
        named = _SESSION_ID.fullmatch(given) is not None
        if kind.route == _BODIES["/v1/events"].route:
            found = _events.decode(body)
            user, repeatable = found.user, _repeatable(found, headers)
            return Whose(given if named else session_key(tenant, user), repeatable)
        if named:
            return Whose(given)
        if kind is _INFERENCE:
            user = _infer_user(headers, body)
            if not user:
                raise ValueError("the tensor user is empty")
            return Whose(session_key(tenant, user))
        if kind.route.startswith(_USER_PATH):
            ending = kind.route.removeprefix("/v1/users/{user:name}")
            return Whose(session_key(tenant, path.removeprefix(_USER_PATH).removesuffix(ending)))
        return Whose(session_key(tenant, _user.decode(body).user))


def asked_ms(kind: Kind, headers: Headers, body: bytes) -> float | None:
    """The deadline that a request names; None if it names none, or not as it should."""
    try:
        if kind is _INFERENCE:
            if _TIMEOUT not in body:
                return None
            length = headers.get(_HEADER_LENGTH)
            head = body if length is None else body[: int(length)]
            timeout_us = _timed.decode(head).parameters.timeout
            return None if timeout_us is None else timeout_us / 1000
        # Looking for the word is much cheaper than reading the body.
        if kind.route not in _TIMED or _DEADLINE not in body:
            return None
        return _due.decode(body).deadline_ms
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        return None


class _User(msgspec.Struct):
    user: str


class _Due(msgspec.Struct):
    deadline_ms: float | None = None


class _Parameters(msgspec.Struct, frozen=True):
    timeout: int | None = None


class _Timed(msgspec.Struct):
    parameters: _Parameters = _Parameters()


class _Events(msgspec.Struct):
    user: str
    key: str | None = None
    source: str | None = None


def _repeatable(events: _Events, headers: Headers) -> bool:
    """Whether the store knows them when they come again."""
    return events.key is not None or events.source is not None or "idempotency-key" in headers


class _Input(msgspec.Struct):
    name: str
    parameters: Mapping[str, Any] = {}
    data: list[Any] = []


class _Inputs(msgspec.Struct):
    inputs: list[msgspec.Raw]


class _Named(msgspec.Struct):
    name: str
    parameters: Mapping[str, Any] = {}


class _Admission(msgspec.Struct):
    admission: str
    reason: str = ""


class _Ranked(msgspec.Struct):
    path: str


_user = msgspec.json.Decoder(_User)
_due = msgspec.json.Decoder(_Due)
_timed = msgspec.json.Decoder(_Timed)
_events = msgspec.json.Decoder(_Events)
_inputs = msgspec.json.Decoder(_Inputs)
_named = msgspec.json.Decoder(_Named)
_input = msgspec.json.Decoder(_Input)
_admission = msgspec.json.Decoder(_Admission)
_ranked = msgspec.json.Decoder(_Ranked)


def _infer_user(headers: Headers, body: bytes) -> str:
    """The user of an inference request, of the first row if there are many; ValueError if there is none."""
    length = headers.get(_HEADER_LENGTH)
    head, raw = (body, b"") if length is None else (body[: int(length)], body[int(length) :])
    at = 0
    for part in _inputs.decode(head).inputs:
        tensor = _named.decode(part)
        size = tensor.parameters.get("binary_data_size")
        if tensor.name != "user":
            at += int(size or 0)
            continue
        if size is None:
            first = _input.decode(part).data[0:1]
            while first and isinstance(first[0], list):
                first = first[0][0:1]
            return str(first[0]) if first else ""
        end = at + _LENGTH_BYTES + int.from_bytes(raw[at : at + _LENGTH_BYTES], "little")
        return raw[at + _LENGTH_BYTES : end].decode()
    raise ValueError("there is no tensor user")


def refused_as_safe(answer: bytes) -> bool:
    """Whether the answer to a prefix signal says that ranking needs none."""
    try:
        found = _admission.decode(answer)
    except msgspec.MsgspecError:
        return False
    return found.admission == "rejected" and found.reason == "not_at_risk"


def admitted(status: int, answer: bytes) -> bool:
    """Whether a prefix signal was admitted, so that there is work to do until its ranking."""
    if status != HTTPStatus.OK:
        return False
    try:
        return _admission.decode(answer).admission == "admitted"
    except msgspec.MsgspecError:
        return False


def path_of(answer: bytes) -> str:
    """How a ranking was served; empty if its answer does not say."""
    try:
        return _ranked.decode(answer).path
    except msgspec.MsgspecError:
        return ""
