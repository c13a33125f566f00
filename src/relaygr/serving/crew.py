"""A fleet whose members come and go as a cluster starts and stops them, with nobody to write them down."""

from __future__ import annotations

import asyncio
import logging

from relaygr.config.relay import Member
from relaygr.config.settings import Config
from relaygr.relay.membership import State
from relaygr.serving.fleet import Fleet
from relaygr.serving.links import AwayError, Transport
from relaygr.serving.roster import Roster

log = logging.getLogger("relaygr.serving")

_OUT = frozenset((State.LEFT, State.DOWN))


class Crew(Fleet):
    """Follows a roster; belongs to one event loop.

    Who is there when this starts, or soon after, is active at once: a router that starts anew moves nobody.
    Who is no longer running drains, and is forgotten when nothing of it is in flight.
    """

    def __init__(self, config: Config, roster: Roster, transport: Transport) -> None:
        super().__init__(config, transport=transport)
        self._roster, self._start_s = roster, self.now_s()
        self._gone: set[str] = set()

    async def start(self) -> None:
        """Follow from now on; whoever there is already has been asked once when this returns."""
        self.links.open()
        loop = asyncio.get_running_loop()
        self._roster.listen(lambda: loop.call_soon_threadsafe(self.follow))
        self.follow()
        await asyncio.gather(*(self.poll(name) for name in self._urls))

    def follow(self) -> None:
        """Let the members be those of the roster."""
        present, members = self._roster.present, self.router.members
        for name in sorted(present):
            if members.get(name) is None:
                self._enter(name)
            elif name in self._gone:
                self._gone.discard(name)
                self.activate(name)
        for one in list(members):
            name = one.member.id
            if name not in present and name not in self._gone:
                self._gone.add(name)
                self.drain(name)
        for name in self._roster.take_died():
            if members.get(name) is not None:
                self.miss(name, AwayError(name, "its process has ended", refused=True, sent=False))

    def _enter(self, name: str) -> None:
        member = Member(id=name, url=f"ray:{name}")
        self._urls[name] = member.url
        if self.now_s() < self._start_s + self.config.ramp_s:
            self.router.members.found(member, self.now_s())
        else:
            self.router.members.add(member, self.now_s())
        log.info("member %s: %s", name, self.router.members[name].state)
        task = asyncio.create_task(self._watch(name))
        self._polls.append(task)
        task.add_done_callback(self._polls.remove)

    async def _watch(self, name: str) -> None:
        """Ask it how it is while it runs; forget it some time after."""
        members = self.router.members
        while True:
            if name not in self._gone:
                await self.poll(name)
            members.advance(self.now_s())
            if name in self._gone and members[name].state in _OUT and self.router.forget(name):
                break
            await asyncio.sleep(self.config.poll_s)
        self._gone.discard(name)
        self._falls.pop(name, None)
        del self._urls[name]
        log.info("member %s: forgotten", name)
