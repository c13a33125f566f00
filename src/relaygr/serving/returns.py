"""What a router answers: a member's answer passed on, several made one, or a signal that went nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from relaygr.serving.exchange import Reply, decode
from relaygr.serving.forward import Delivered, Dropped
from relaygr.serving.laps import EPOCH, LAPS, OWNER, Kind
from relaygr.serving.links import Answer, Pairs
from relaygr.serving.wire import DeleteAnswer, PrefixReply

_ANEW = frozenset((b"x-request-id", b"content-length", b"connection"))


class _User(msgspec.Struct):
    user: str


_user = msgspec.json.Decoder(_User)
_deleted = msgspec.json.Decoder(DeleteAnswer)


def passed_on(found: Delivered, kind: Kind) -> Reply:
    """The member's answer; of a lap, with who gave it, for the client to name in the next one."""
    reply = _reply(found.answer)
    if kind.lap not in LAPS:
        return reply
    return _with(reply, relay_headers(found.route.member, found.route.epoch))


def stamped(reply: Reply, request_id: str, seconds: float, *, closing: bool = False) -> Reply:
    """With what every answer has; `closing` sends the client to another server."""
    headers: Pairs = [
        (b"x-request-id", request_id.encode()),
        (b"server-timing", f"gateway;dur={1000 * seconds:.3f}".encode()),
    ]
    if closing:
        headers.append((b"connection", b"close"))
    return _with(reply, headers)


def relay_headers(member: str, epoch: int) -> Pairs:
    return [(OWNER.encode(), member.encode()), (EPOCH.encode(), b"%d" % epoch)]


def dropped(found: Dropped, body: bytes, request_id: str) -> Reply:
    """A signal that no member got is answered as one that a member refused: ranking does without."""
    answer = PrefixReply(
        user=decode(_user, body).user,
        admission="rejected",
        reason=found.reason,
        tokens=0,
        cached=0,
        model="",
        request_id=request_id,
    )
    return Reply.json(answer, headers=[(EPOCH.encode(), b"%d" % found.epoch)])


def merged(answers: Sequence[Answer]) -> Reply:
    """One answer for all members: the first that is an error, else what they did together."""
    first = next((one for one in answers if one.status >= 300), answers[0])
    try:
        parts = [_deleted.decode(one.body) for one in answers if one.status < 300]
    except msgspec.MsgspecError:
        return _reply(first)
    if first.status >= 300 or not parts:
        return _reply(first)
    whole = DeleteAnswer(
        parts[0].user, sum(part.events for part in parts), sum(part.entries for part in parts)
    )
    return Reply.json(whole)


def _reply(answer: Answer) -> Reply:
    """Without what every answer of a router gets anew."""
    kind, rest = b"application/octet-stream", []
    for name, value in answer.headers:
        if name == b"content-type":
            kind = value
        elif name not in _ANEW:
            rest.append((name, value))
    return Reply(answer.body, answer.status, kind, rest)


def _with(reply: Reply, headers: Pairs) -> Reply:
    return Reply(reply.body, reply.status, reply.content_type, [*reply.headers, *headers])
