"""Every call as data: what is sent, what is understood, and whether it may be repeated."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar
from urllib.parse import quote

import msgspec

from relaygr.client import answers
from relaygr.client.errors import RequestRejectedError
from relaygr.client.status import Status

A = TypeVar("A")
Ints = Iterable[int]
"""Integers of 64 bits: a list, a range, a numpy array."""

_Column = list[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]]
_MAX_NAME_BYTES = 256
_MAX_MS = 3_600_000


class History(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's events, oldest first, sent along in place of the stored ones."""

    items: list[int]
    timestamps: list[int]
    actions: list[int] | None = None
    contextual: list[int] = []
    utc_offset_s: int = 0
    first_sequence: int = 0


class Sent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is sent; fields that stand at their default are left out."""

    user: str | None = None
    deadline_ms: float | None = None
    budget_ms: float | None = None


class Body(Sent, kw_only=True, omit_defaults=True):
    """The fields of all calls about users and models."""

    items: list[int] | None = None
    timestamps: list[int] | None = None
    actions: list[int] | None = None
    key: str | None = None
    candidates: list[int] | int | None = None
    query_time: int | list[int] | None = None
    history: History | None = None
    output: str | None = None
    top_k: int | None = None
    contextual: list[int] | None = None
    utc_offset_s: int | None = None
    path: str | None = None
    generate: bool = False


@dataclass(frozen=True, slots=True)
class Call(Generic[A]):
    """One request of the protocol.

    Attributes:
        answer: what the body of a good answer is read as.
        idempotent: whether doing it twice is the same as doing it once.
        deadline_ms: from the start of the call; the body carries what is left of it. None: no deadline.
        hint: the member that should answer.
        ahead: it goes ahead of ranking, which must not wait for it: such calls have connections and a budget
            of retries of their own.
        user: whom the path names.
    """

    method: str
    path: str
    answer: type[A]
    idempotent: bool
    body: Sent | None = None
    deadline_ms: float | None = None
    hint: answers.Hint | None = None
    ahead: bool = False
    user: str | None = None

    @property
    def whose(self) -> str | None:
        """The user it is about; None if it is about none."""
        return self.user if self.body is None or self.body.user is None else self.body.user


def history(
    items: Ints,
    timestamps: Ints,
    actions: Ints | None = None,
    *,
    contextual: Ints = (),
    utc_offset_s: int = 0,
    first_sequence: int = 0,
) -> History:
    """A history to send along with `rank` or `prefix`; RequestRejectedError for what is no int64."""
    return History(
        items=column("items", items),
        timestamps=column("timestamps", timestamps),
        actions=None if actions is None else column("actions", actions),
        contextual=column("contextual", contextual),
        utc_offset_s=utc_offset_s,
        first_sequence=first_sequence,
    )


def append(
    user: str, items: Ints, timestamps: Ints, actions: Ints | None, key: str | None
) -> Call[answers.Appended]:
    key = uuid.uuid4().hex if key == "" else key
    body = Body(
        user=user,
        items=column("items", items),
        timestamps=column("timestamps", timestamps),
        actions=None if actions is None else column("actions", actions),
        key=key,
    )
    return Call("POST", "/v1/events", answers.Appended, key is not None, body)


def prefix(
    user: str,
    sent: History | None,
    deadline_ms: float | None,
    candidates: int | None,
    generate: bool = False,
) -> Call[answers.PrefixSignal]:
    expected = None if candidates is None else column("candidates", [candidates])[0]
    body = Body(user=user, history=sent, deadline_ms=deadline_ms, candidates=expected, generate=generate)
    return Call("POST", "/v1/prefix", answers.PrefixSignal, True, body, deadline_ms, ahead=True)


def rank(
    user: str,
    candidates: Ints,
    query_time: int | Ints | None,
    sent: History | None,
    deadline_ms: float | None,
    output: str,
    top_k: int | None,
    budget_ms: float | None,
    hint: answers.Hint | None,
) -> Call[answers.Ranking]:
    if query_time is not None and not isinstance(query_time, int):
        query_time = column("query_time", query_time)
    body = Body(
        user=user,
        candidates=column("candidates", candidates),
        query_time=query_time,
        history=sent,
        deadline_ms=deadline_ms,
        budget_ms=None if budget_ms is None else check_ms("budget_ms", budget_ms),
        output=output,
        top_k=top_k,
    )
    return Call("POST", "/v1/rank", answers.Ranking, True, body, deadline_ms, hint)


def set_profile(user: str, contextual: Ints, utc_offset_s: int) -> Call[answers.Profile]:
    body = Body(contextual=column("contextual", contextual), utc_offset_s=utc_offset_s)
    return Call("PUT", f"{_user_path(user)}/profile", answers.Profile, True, body, user=user)


def delete(user: str) -> Call[answers.Deleted]:
    return Call("DELETE", _user_path(user), answers.Deleted, True, user=user)


def state(user: str) -> Call[answers.UserState]:
    return Call("GET", f"{_user_path(user)}/state", answers.UserState, True, user=user)


def models() -> Call[answers.Models]:
    return Call("GET", "/v1/models", answers.Models, True)


def reload(path: str | None) -> Call[answers.Reloaded]:
    return Call("POST", "/v1/models/reload", answers.Reloaded, False, Body(path=path))


def status() -> Call[Status]:
    return Call("GET", "/v1/status", Status, True)


def health() -> Call[answers.Health]:
    return Call("GET", "/healthz", answers.Health, True)


def column(name: str, values: Ints) -> list[int]:
    """`values` as integers of Python, whatever held them; RequestRejectedError for anything but int64."""
    # Arrays know a fast way; without it their elements would not be integers of Python.
    listed = values.tolist() if hasattr(values, "tolist") else values
    try:
        return msgspec.convert(list(listed), _Column)
    except (msgspec.ValidationError, TypeError) as error:
        raise RequestRejectedError(f"{name}: {error}", field=name) from error


def check_ms(field: str, value: float) -> float:
    """`value`, if it is a time a call may take; RequestRejectedError otherwise."""
    if not 0 < value <= _MAX_MS:
        raise RequestRejectedError(f"{field}: {value} is outside (0, {_MAX_MS}]", field=field)
    return value


def _user_path(user: str) -> str:
    try:
        size = len(user.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise RequestRejectedError(f"user: {user!r} is not valid Unicode", field="user") from error
    if not 1 <= size <= _MAX_NAME_BYTES:
        message = f"user: has {size} bytes, must have 1 to {_MAX_NAME_BYTES}"
        raise RequestRejectedError(message, field="user")
    # A dot is safe in a URL, except that a name of dots alone would be read as a step up.
    return "/v1/users/" + quote(user, safe="").replace(".", "%2E")
