"""How a member is: asked at `/v1/relay/feedback`, or at `/healthz` where there is no such thing."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

import msgspec
from multidict import CIMultiDict

from relaygr.relay.membership import Feedback
from relaygr.serving.links import Answer, AwayError, Letter, Transport

_FEEDBACK = Letter("GET", "/v1/relay/feedback", CIMultiDict(), b"")
_HEALTH = Letter("GET", "/healthz", CIMultiDict(), b"")


class _Said(msgspec.Struct):
    """What is read of a member's word; everything else in it is for others."""

    ready: bool = True
    draining: bool = False
    build: str = ""
    page_tokens: int = 0
    epoch: int = 0
    load: float = 0.0


class _Health(msgspec.Struct):
    status: str


_said = msgspec.json.Decoder(_Said)
_health = msgspec.json.Decoder(_Health)
_Word = TypeVar("_Word")


async def ask(links: Transport, member: str, url: str, timeout_s: float) -> Feedback:
    """The member's word.

    Raises:
        AwayError: it gave none in time, or one that makes no sense.
    """
    answer = await links.send(member, url, _FEEDBACK, timeout_s=timeout_s)
    if answer.status == HTTPStatus.OK:
        said = _decoded(_said, member, answer)
        return Feedback(said.build, said.page_tokens, said.epoch, int(said.load), said.draining, said.ready)
    answer = await links.send(member, url, _HEALTH, timeout_s=timeout_s)
    if answer.status != HTTPStatus.OK:
        raise AwayError(member, f"/healthz answered {answer.status}", refused=False, sent=True)
    status = _decoded(_health, member, answer).status
    return Feedback(draining=status == "draining", ready=status == "ready")


def _decoded(decoder: msgspec.json.Decoder[_Word], member: str, answer: Answer) -> _Word:
    try:
        return decoder.decode(answer.body)
    except msgspec.MsgspecError as error:
        raise AwayError(member, f"its word is not one: {error}", refused=False, sent=True) from error
