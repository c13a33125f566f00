"""The members of a fleet as a process sees them: the router, connections, polls that keep both informed."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from relaygr.config.settings import Config
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.relay.membership import Standing, State
from relaygr.relay.router import Router
from relaygr.serving.links import AwayError, Links, Transport
from relaygr.serving.polls import ask

log = logging.getLogger("relaygr.serving")

# Where budgets follow the machine, a router cannot know them; a placement and a drain may last longer.
_T_LIFE_S = 10.0


class Fleet:
    """Members, and who of them serves whom; belongs to one event loop.

    Attributes:
        router: decides; its time is `now_s`.
    """

    def __init__(
        self, config: Config, clock: Clock | None = None, transport: Transport | None = None
    ) -> None:
        """`transport` is the way to the members; None is HTTP."""
        self.config, self._clock = config.router, clock or MonotonicClock()
        t_life_s, drain_s = _seconds(config.budgets.t_life_ms), _seconds(config.budgets.drain_ms)
        t_life_s = t_life_s or _T_LIFE_S
        self.router = Router(self.config, t_life_s, self.now_s(), drain_s=drain_s or t_life_s)
        self.links = transport or Links(self.config.connect_ms / 1000, self.config.connections)
        self._urls = {member.id: member.url.rstrip("/") for member in self.config.members}
        self._polls: list[asyncio.Task[None]] = []
        self._falls: dict[str, asyncio.Future[None]] = {}
        self._asking: set[str] = set()
        self._probes: set[asyncio.Task[None]] = set()

    def now_s(self) -> float:
        return self._clock.now_s()

    def url(self, member: str) -> str:
        return self._urls[member]

    async def start(self) -> None:
        """Ask everybody once, then again and again; when this returns, it is known who is ready."""
        self.links.open()
        await asyncio.gather(*(self.poll(name) for name in self._urls))
        self._polls = [asyncio.create_task(self._keep_polling(name)) for name in self._urls]

    async def close(self) -> None:
        tasks = [*self._polls, *self._probes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.links.close()

    async def poll(self, name: str) -> None:
        """Ask one member how it is."""
        standing = self.router.members[name]
        before = standing.state, standing.mismatched
        self.router.members.advance(self.now_s())
        self._asking.add(name)
        try:
            said = await ask(self.links, name, self._urls[name], self.config.feedback_max_age_s)
        except AwayError as error:
            self._tell(standing, before)
            self.miss(name, error)
            return
        finally:
            self._asking.discard(name)
        self.router.members.hear(name, said, self.now_s())
        self._tell(standing, before)

    def miss(self, name: str, error: AwayError) -> None:
        """A member did not answer: it is down at once if nothing listens there, else after some times."""
        if error.busy:
            self.answered(name)
            return
        standing = self.router.members[name]
        if error.silent and self.heard_since(name, self.now_s() - self.config.feedback_max_age_s):
            return
        before = standing.state, standing.mismatched
        if error.refused:
            self.router.members.down(name, self.now_s())
        else:
            self.router.members.miss(name, self.now_s())
        self._tell(standing, before, str(error))

    def answered(self, name: str) -> None:
        """A member gave a sign of life that is no word of how it is."""
        standing = self.router.members.get(name)
        if standing is not None:
            standing.answered_s = self.now_s()

    def heard_since(self, name: str, since_s: float) -> bool:
        """Whether the member has given any sign of life since; KeyError if there is no such member."""
        standing = self.router.members[name]
        return max(standing.heard_s, standing.answered_s) >= since_s

    def probe(self, name: str) -> None:
        """Ask a member how it is, now, unless it is being asked already."""
        if name not in self._asking:
            task = asyncio.create_task(self._probe(name))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    async def _probe(self, name: str) -> None:
        with contextlib.suppress(KeyError):  # forgotten meanwhile
            await self.poll(name)

    def drain(self, name: str) -> None:
        """KeyError if there is no such member."""
        standing = self.router.members[name]
        before = standing.state, standing.mismatched
        self.router.members.drain(name, self.now_s())
        self._tell(standing, before)

    def activate(self, name: str) -> None:
        """KeyError if there is no such member."""
        standing = self.router.members[name]
        before = standing.state, standing.mismatched
        self.router.members.activate(name, self.now_s())
        self._tell(standing, before)

    def fall(self, name: str) -> asyncio.Future[None]:
        """Done when the member goes down; for who waits for its answer."""
        found = self._falls.get(name)
        if found is None:
            found = self._falls[name] = asyncio.get_running_loop().create_future()
        return found

    @property
    def ready(self) -> bool:
        """Whether there is anybody to send a request to."""
        return any(one.serves for one in self.router.members)

    async def _keep_polling(self, name: str) -> None:
        while True:
            await asyncio.sleep(self.config.poll_s)
            await self.poll(name)

    def _tell(self, standing: Standing, before: tuple[State, bool], why: str = "") -> None:
        name, state = standing.member.id, standing.state
        if state is State.DOWN and before[0] is not State.DOWN:
            fallen = self._falls.pop(name, None)
            if fallen is not None:
                fallen.set_result(None)
        if state is not before[0]:
            level = logging.WARNING if state is State.DOWN else logging.INFO
            log.log(level, "member %s: %s, was %s%s", name, state, before[0], f" ({why})" if why else "")
        if standing.mismatched and not before[1]:
            build, pages = standing.feedback.kind
            log.warning(
                "member %s gets no users: it differs from most, build %s, page_tokens %d", name, build, pages
            )


def _seconds(milliseconds: float | str) -> float:
    """0 for what is automatic."""
    return 0.0 if isinstance(milliseconds, str) else milliseconds / 1000
