"""A request on its way to a member: the next choice where one is away, an error where nobody is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from relaygr.core.errors import CancelledError, DeadlineError, NotReadyError
from relaygr.relay.route import Lap, Refused, Route
from relaygr.serving.errors import HttpError
from relaygr.serving.fleet import Fleet
from relaygr.serving.laps import EPOCH, MOVED, OWNER, admitted, path_of, refused_as_safe
from relaygr.serving.links import Answer, AwayError, Letter
from relaygr.serving.silence import Silence

# A request that was on its way to two members who went away may be why they did.
_LOSSES_MAX = 2
# Longer answers are not searched for how they were served.
_READ_BYTES = 65_536
_HITS = frozenset(("hit", "joined", "reloaded"))

Pick = Callable[[Collection[str]], Route | Refused]


@dataclass(frozen=True, slots=True)
class Errand:
    """A request with what its routing needs.

    Attributes:
        key: of its user; None for a request of no user, or of one that cannot be told.
        hint: the member that the client names.
        repeatable: doing it twice is as good as once.
        timeout_s: longest wait for an answer, all members together; None is for ever.
    """

    letter: Letter
    lap: Lap
    key: str | None
    hint: str | None
    repeatable: bool
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Here:
    """The member is this process; `Router.done` must be told when the request has ended.

    Attributes:
        until_s: when the answer is due, by the event loop's clock, where others have had a part of its time.
    """

    route: Route
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A prefix signal that no member got."""

    reason: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Delivered:
    route: Route
    answer: Answer


class Forwarder:
    """Sends requests where the router says; `self_id` is the member that is this process, if it is one.

    Attributes:
        hits: rankings whose prefix should have been cached where they were sent, and those that said it was.
    """

    def __init__(self, fleet: Fleet, self_id: str = "") -> None:
        self._fleet, self._router, self._self = fleet, fleet.router, self_id
        self.hits = {"estimated": 0, "actual": 0}

    async def prefix(self, errand: Errand, gone: asyncio.Future[None]) -> Delivered | Dropped | Here:
        """A signal goes to its owner or nowhere: ranking does not depend on it."""
        assert errand.key is not None
        route = self._router.route_prefix(errand.key, self._fleet.now_s())
        if isinstance(route, Refused):
            return Dropped(route.reason, route.epoch)
        if route.member == self._self:
            return Here(route)
        try:
            answer = await self._deliver(route, errand, gone, _until_s(errand), leave=True)
        except AwayError as error:
            return Dropped("load" if error.busy else "no_instance", self._router.epoch)
        if _not_ready(answer):
            return Dropped("no_instance", self._router.epoch)
        if answer.status == HTTPStatus.OK and refused_as_safe(answer.body):
            self._router.release(errand.key)
        return Delivered(route, answer)

    async def send(self, errand: Errand, gone: asyncio.Future[None]) -> Delivered | Here:
        """Every other request: to the member that has the user, else to the next choices in turn.

        Raises:
            NotReadyError: nobody is left.
            DeadlineError: there was no answer in time.
            HttpError: 502, a member went away with a request that must not be repeated, or kept it too long.
            CancelledError: `gone` was done first.
        """
        pick, losses, until_s = self._picker(errand), 0, _until_s(errand)
        away: list[str] = []
        while True:
            route = pick(away)
            if isinstance(route, Refused):
                raise NotReadyError("no instance is ready")
            if route.member == self._self:
                return Here(route, until_s if away else None)
            leave = errand.repeatable and losses + 1 < _LOSSES_MAX and self._another(route.member, away)
            try:
                answer = await self._deliver(route, errand, gone, until_s, leave=leave)
            except AwayError as error:
                losses += error.sent
                if error.sent and (not errand.repeatable or losses >= _LOSSES_MAX):
                    raise _lost(error) from error
            else:
                if not _not_ready(answer):
                    self._count(errand, route, answer)
                    return Delivered(route, answer)
            away.append(route.member)

    def done(self, route: Route) -> None:
        """What was `Here` has ended."""
        self._router.done(route.member)

    async def everywhere(self, errand: Errand, gone: asyncio.Future[None]) -> list[Answer]:
        """To every other member that serves, at once; those that do not live any more need not answer.

        Raises:
            NotReadyError: nobody serves.
            HttpError: 502, one of them may or may not have done it.
        """
        names = [one.member.id for one in self._router.members if one.serves and one.member.id != self._self]
        found = await asyncio.gather(
            *(self._send(Route(name, self._router.epoch), errand, gone, _until_s(errand)) for name in names),
            return_exceptions=True,
        )
        answers: list[Answer] = []
        for name, answer in zip(names, found, strict=True):
            if isinstance(answer, AwayError):
                self._fleet.miss(name, answer)
                if not answer.refused:
                    raise _lost(answer) from answer
            elif isinstance(answer, BaseException):
                raise answer
            elif not _not_ready(answer):
                answers.append(answer)
        if not answers:
            raise NotReadyError("no instance is ready")
        return answers

    def _picker(self, errand: Errand) -> Pick:
        router, now_s, key = self._router, self._fleet.now_s, errand.key
        if key is None:
            return lambda away: router.route_any(now_s(), away)
        if errand.lap is Lap.RANK:
            return lambda away: router.route_rank(key, errand.hint, now_s(), away)
        return lambda away: router.route_other(key, now_s(), away)

    def _another(self, name: str, away: Collection[str]) -> bool:
        return any(
            one.takes and one.member.id != name and one.member.id not in away for one in self._router.members
        )

    async def _deliver(
        self,
        route: Route,
        errand: Errand,
        gone: asyncio.Future[None],
        until_s: float | None,
        *,
        leave: bool,
    ) -> Answer:
        """To the member of the route; if the connection broke, once more, where that does no harm.

        A kept connection may be closed just as it is used, which tells nothing about the member.
        """
        awaited = False
        try:
            try:
                answer = await self._send(route, errand, gone, until_s, leave=leave)
                awaited = errand.lap is Lap.PREFIX and admitted(answer.status, answer.body)
                return answer
            except AwayError as error:
                once = error.silent or not (error.sent and errand.repeatable)
                if once or not self._router.members[route.member].serves:
                    raise
            return await self._send(route, errand, gone, until_s, leave=leave)
        except AwayError as error:
            self._fleet.miss(route.member, error)
            raise
        finally:
            if awaited and errand.key is not None:
                self._router.admitted(errand.key, route.member, self._fleet.now_s())
            else:
                self._router.done(route.member)

    async def _send(
        self,
        route: Route,
        errand: Errand,
        gone: asyncio.Future[None],
        until_s: float | None,
        *,
        leave: bool = False,
    ) -> Answer:
        """One try; given up when the client is gone or the member is down, or its time is over.

        Args:
            leave: give it up sooner where the member gives no sign of life.
        """
        name, fleet = route.member, self._fleet
        more = {OWNER: name, EPOCH: str(route.epoch)}
        if route.moved:
            more[MOVED] = "1"
        ends, silence = (gone, fleet.fall(name)), None
        try:
            # In this task and not in one of its own: every turn of the event loop counts here.
            async with asyncio.timeout_at(until_s) as limit:

                def stop(_: object = None) -> None:
                    # The answer may have come in the same turn.
                    with contextlib.suppress(RuntimeError):
                        limit.reschedule(0.0)

                for end in ends:
                    end.add_done_callback(stop)
                if leave:
                    silence = Silence(fleet, name, until_s, stop)
                try:
                    answer = await fleet.links.send(name, fleet.url(name), errand.letter, more)
                    fleet.answered(name)
                    return answer
                finally:
                    for end in ends:
                        end.remove_done_callback(stop)
                    if silence is not None:
                        silence.end()
        except TimeoutError as error:
            if gone.done():
                raise CancelledError("the client disconnected") from error
            if ends[1].done():
                raise AwayError(name, "down", refused=False, sent=True) from error
            away = AwayError(name, "no sign of life", refused=False, sent=True, silent=True)
            if silence is not None and silence.certain:
                raise away from error
            fleet.miss(name, away)
            said = f"no answer within {errand.timeout_s:g} s"
            if not errand.repeatable:
                raise _lost(AwayError(name, said, refused=False, sent=True)) from error
            raise DeadlineError(said) from error

    def _count(self, errand: Errand, route: Route, answer: Answer) -> None:
        """What the router expected of the cache, and what became of it."""
        if errand.lap is not Lap.RANK or answer.status != HTTPStatus.OK or len(answer.body) > _READ_BYTES:
            return
        self.hits["estimated"] += not route.moved
        self.hits["actual"] += path_of(answer.body) in _HITS


class _Code(msgspec.Struct):
    code: str


class _Error(msgspec.Struct):
    error: _Code | str


_error = msgspec.json.Decoder(_Error)


def _not_ready(answer: Answer) -> bool:
    """Whether a member refuses everything: it starts or stops. One that is only busy is to be believed."""
    if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
        return False
    try:
        found = _error.decode(answer.body).error
    except msgspec.MsgspecError:
        return True
    # The inference protocol has no codes.
    return found.startswith("the service is ") if isinstance(found, str) else found.code == "not_ready"


def _until_s(errand: Errand) -> float | None:
    """When the answer is due, by the event loop's clock."""
    return None if errand.timeout_s is None else asyncio.get_running_loop().time() + errand.timeout_s


def _lost(error: AwayError) -> HttpError:
    return HttpError(
        HTTPStatus.BAD_GATEWAY, "instance_lost", f"an instance went away before it answered: {error}"
    )
