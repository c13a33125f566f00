"""One call from its first attempt to its end, without input or output: the core both clients share."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Generic

import httpx
import msgspec

from relaygr.client.answers import Hint, Placed, Refusal, Refused
from relaygr.client.calls import A, Call, check_ms
from relaygr.client.errors import (
    BadAnswerError,
    ClientError,
    DeadlineExceededError,
    OverloadedError,
    RequestRejectedError,
    UnavailableError,
)
from relaygr.client.retry import RetryBudget, RetryPolicy
from relaygr.core.ids import session_key

_SESSION = "x-session-id"
_REQUEST_ID, _OWNER, _EPOCH = "x-request-id", "x-relay-owner", "x-relay-epoch"
_MAX_HEADER = 256
_MAX_TRACE = 1024


@dataclass(frozen=True, slots=True)
class Terms:
    """What all calls of a client share.

    Attributes:
        timeout_ms: of a call without a deadline, all attempts together.
        connect_ms: of one attempt to connect.
        answer_bytes: longest answer that is read.
        sessions_of: the tenant whose users calls name in `x-session-id`; None sends no such header.
    """

    policy: RetryPolicy
    budget: RetryBudget
    timeout_ms: float
    connect_ms: float
    answer_bytes: int
    rng: random.Random
    sessions_of: str | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One attempt; `timeout_s` is what is left for it."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes
    timeout_s: float
    connect_s: float

    @property
    def timeout(self) -> httpx.Timeout:
        return httpx.Timeout(self.timeout_s, connect=self.connect_s)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; `hint` if a gateway said who answered."""

    status: int
    body: bytes
    hint: Hint | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """Try again after a pause."""

    pause_s: float


class Exchange(Generic[A]):
    """Decides after each attempt whether it was the last."""

    def __init__(
        self, call: Call[A], terms: Terms, now_s: float, request_id: str | None, traceparent: str | None
    ) -> None:
        """Start the clock of the call; `now_s` is monotonic.

        Raises:
            RequestRejectedError: a header cannot be sent.
        """
        limit_ms = terms.timeout_ms if call.deadline_ms is None else call.deadline_ms
        check_ms("deadline_ms", limit_ms)
        self._call, self._terms = call, terms
        self.request_id = check_header("request_id", request_id) if request_id else uuid.uuid4().hex
        self._headers = {_REQUEST_ID: self.request_id}
        if traceparent is not None:
            self._headers["traceparent"] = check_header("traceparent", traceparent, _MAX_TRACE)
        if call.body is not None:
            self._headers["content-type"] = "application/json"
        if terms.sessions_of is not None and call.whose is not None:
            self._headers[_SESSION] = session_key(terms.sessions_of, call.whose)
        if call.hint is not None:
            self._headers[_OWNER] = check_header("hint.owner", call.hint.owner)
            self._headers[_EPOCH] = str(int(call.hint.epoch))
        self._retries = 0
        self._end_s = now_s + limit_ms / 1000
        terms.budget.earn()

    def outgoing(self, now_s: float) -> Outgoing:
        """The next attempt.

        Raises:
            DeadlineExceededError: no time is left for one.
            RequestRejectedError: the body holds what JSON or the protocol cannot carry.
        """
        left_s = self._end_s - now_s
        if left_s <= 0:
            raise DeadlineExceededError("no time was left for the request", self.request_id)
        connect_s = min(left_s, self._terms.connect_ms / 1000)
        call = self._call
        return Outgoing(call.method, call.path, self._headers, self._content(left_s), left_s, connect_s)

    def answered(self, reply: Reply, now_s: float) -> A | Again:
        """What the answer means: a value, another attempt, or its error raised."""
        if reply.status == 200:
            try:
                return _placed(msgspec.json.decode(reply.body, type=self._call.answer), reply.hint)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self._bad(reply, f"the answer cannot be read: {error}") from error
        refused, asked_ms = self._refusal(reply)
        if reply.status != 503:
            raise refused
        return self._again(refused, asked_ms, now_s)

    def failed(self, error: httpx.RequestError | TimeoutError, now_s: float) -> Again:
        """What an attempt without an answer means: another attempt, or its error raised."""
        said = str(error) or type(error).__name__
        if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
            raise RequestRejectedError(f"cannot be sent: {said}", request_id=self.request_id) from error
        if isinstance(error, httpx.DecodingError):
            raise self._bad(Reply(200, b""), f"the answer cannot be read: {said}") from error
        if isinstance(error, (TimeoutError, httpx.TimeoutException)) and not isinstance(
            error, httpx.ConnectTimeout
        ):
            raise DeadlineExceededError(
                "no answer within the time for the request", self.request_id
            ) from error
        return self._again(UnavailableError(f"no answer: {said}", self.request_id), 0.0, now_s)

    def too_long(self) -> BadAnswerError:
        limit = self._terms.answer_bytes
        return BadAnswerError(
            f"the answer has more than {limit} bytes", status=200, request_id=self.request_id
        )

    def _again(self, error: ClientError, asked_ms: float, now_s: float) -> Again:
        policy = self._terms.policy
        if not self._call.idempotent or self._retries + 1 >= policy.attempts:
            raise error
        pause_s = policy.pause_ms(self._retries, asked_ms, self._terms.rng) / 1000
        # An attempt that would start after the end is none; the true reason says more than a deadline.
        if now_s + pause_s >= self._end_s or not self._terms.budget.spend():
            raise error
        self._retries += 1
        return Again(pause_s)

    def _content(self, left_s: float) -> bytes:
        body = self._call.body
        if body is None:
            return b""
        if self._call.deadline_ms is not None:
            left_ms = max(left_s * 1000, 1.0)
            budget_ms = None if body.budget_ms is None else min(body.budget_ms, left_ms)
            body = msgspec.structs.replace(body, deadline_ms=left_ms, budget_ms=budget_ms)
        try:
            return msgspec.json.encode(body)
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise RequestRejectedError(f"cannot be sent: {error}", request_id=self.request_id) from error

    def _refusal(self, reply: Reply) -> tuple[ClientError, float]:
        """The error of an answer that is none, and the pause in milliseconds that the server asks for."""
        try:
            refusal = msgspec.json.decode(reply.body, type=Refused).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            refusal = Refusal(code="", message=f"status {reply.status} without a reason that can be read")
        said, mine = (
            f"{refusal.code}: {refusal.message}" if refusal.code else refusal.message,
            self.request_id,
        )
        asked_ms = max(refusal.retry_after_ms or 0.0, 0.0)
        if reply.status == 429 or (reply.status == 503 and refusal.code == "overload"):
            return OverloadedError(said, asked_ms, mine), asked_ms
        if reply.status == 503:
            return UnavailableError(said, mine, refusal.retry_after_ms), asked_ms
        if reply.status == 504:
            return DeadlineExceededError(said, mine), asked_ms
        if 400 <= reply.status < 500:
            error = RequestRejectedError(
                said,
                field=refusal.field,
                status=reply.status,
                code=refusal.code,
                limit=refusal.limit,
                request_id=mine,
            )
            return error, asked_ms
        return self._bad(reply, said, refusal.code), asked_ms

    def _bad(self, reply: Reply, message: str, code: str = "") -> BadAnswerError:
        return BadAnswerError(message, status=reply.status, code=code, request_id=self.request_id)


def hint_of(headers: httpx.Headers) -> Hint | None:
    """Who answered, if a gateway said so in a way that can be sent back."""
    owner, epoch = headers.get(_OWNER, ""), headers.get(_EPOCH, "0")
    if not _sendable(owner, _MAX_HEADER) or not (epoch.isascii() and epoch.isdigit() and len(epoch) < 20):
        return None
    return Hint(owner, int(epoch))


def _placed(answer: A, hint: Hint | None) -> A:
    if hint is None or not isinstance(answer, Placed):
        return answer
    return msgspec.structs.replace(answer, owner=hint.owner, epoch=hint.epoch)


def check_header(field: str, value: str, limit: int = _MAX_HEADER) -> str:
    """`value`, if it can stand in a header; RequestRejectedError otherwise, which does not show it."""
    if not _sendable(value, limit):
        message = f"{field}: must be 1 to {limit} printable ASCII characters"
        raise RequestRejectedError(message, field=field)
    return value


def _sendable(value: str, limit: int) -> bool:
    return 0 < len(value) <= limit and value.isascii() and value.isprintable()
