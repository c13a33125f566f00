"""The members as they are shown, and as they are told to leave and return."""

from __future__ import annotations

import math
import re
from http import HTTPStatus

import msgspec

from relaygr.relay.membership import State
from relaygr.serving.errors import HttpError
from relaygr.serving.fleet import Fleet

_PATH = re.compile(r"/v1/members/([!-~]+)/(drain|activate)")


class MemberCard(msgspec.Struct, frozen=True):
    """A member; `heard_ms` is how long ago it said something, None for never."""

    id: str
    url: str
    state: State
    weight: float
    mismatched: bool
    in_flight: int
    load: int
    build: str
    page_tokens: int
    heard_ms: float | None


class MembersAnswer(msgspec.Struct, frozen=True):
    epoch: int
    members: list[MemberCard]


def show(fleet: Fleet) -> MembersAnswer:
    router, now_s = fleet.router, fleet.now_s()
    cards = [
        MemberCard(
            one.member.id,
            one.member.url,
            one.state,
            router.members.weight(one.member.id, now_s),
            one.mismatched,
            router.inflight(one.member.id),
            one.feedback.load,
            one.feedback.build,
            one.feedback.page_tokens,
            round(1000 * (now_s - one.heard_s), 1) if math.isfinite(one.heard_s) else None,
        )
        for one in router.members
    ]
    return MembersAnswer(router.epoch, cards)


def change(fleet: Fleet, path: str) -> MembersAnswer:
    """Drain or activate the member that the path names; HttpError 404 if it names none."""
    found = _PATH.fullmatch(path)
    if found is None or fleet.router.members.get(found[1]) is None:
        raise HttpError(HTTPStatus.NOT_FOUND, "not_found", f"POST {path[:200]}: no such member or action")
    if found[2] == "drain":
        fleet.drain(found[1])
    else:
        fleet.activate(found[1])
    return show(fleet)
