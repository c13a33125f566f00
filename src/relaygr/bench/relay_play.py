"""Plays a script, open loop: every step goes out when it is due, whatever became of the ones before.

Latency counts from the time a ranking was due, not from when it was sent.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from relaygr.bench.relay_script import Kind, Script, Step
from relaygr.bench.relay_wire import Door, bare, clock

_LEAD_IN_S = 0.05
_SETUP_PARALLEL = 4
# Waiting for the last answers beyond the budget of a request: answers that late count for nothing.
_GRACE_S = 1.0
UNSENT, UNANSWERED = -1, -2
_PATH = b'"path":"'
_SHORTENED = (b"truncated", b"degraded")


@dataclass(slots=True)
class Heard:
    """What became of one request; times in seconds on the player's clock, which starts with the script.

    Attributes:
        due_s, sent_s, done_s: of ranking.
        status: of ranking: HTTP, 0 for a lost connection, `UNSENT` or `UNANSWERED`.
        ranked, signalled: the answers.
    """

    due_s: float = 0.0
    sent_s: float = 0.0
    done_s: float = 0.0
    status: int = UNSENT
    ranked: bytes = b""
    signal_status: int = UNSENT
    signalled: bytes = b""
    events_status: int = 200

    @property
    def latency_s(self) -> float:
        return self.done_s - self.due_s


@dataclass(frozen=True, slots=True)
class Played:
    """A script that was played.

    Attributes:
        heard: of its requests, in their order.
        ended: whether it was given up, because too many rankings had failed to pass.
        seconds: that it took; `skipped_s`: of the script's time, what was left out because nothing was due.
    """

    heard: tuple[Heard, ...]
    ended: bool
    seconds: float
    skipped_s: float


class Player:
    """Plays one script once."""

    def __init__(
        self,
        doors: Sequence[Door],
        script: Script,
        *,
        bad_most: int | None = None,
        idle_s: float | None = None,
    ) -> None:
        """Play `script` on the servers behind `doors`.

        Args:
            bad_most: give up when more rankings than this, of those that count, came late or shortened.
            idle_s: longest time without any request between its trigger and its answer; what is longer is
                left out, None leaves out nothing. A server without reuse meets the same requests in the
                same order and company. One that measures its load finds a higher one, and is the stricter.
        """
        self._doors, self._script = doors, script
        self._bad_left = len(script.requests) if bad_most is None else bad_most
        self._idle_s = idle_s
        self._heard = [Heard(due_s=request.time_s + request.lead_s) for request in script.requests]
        self._zero_s = self._skipped_s = 0.0
        self._waiting = 0  # answers
        self._begun: set[int] = set()  # requests whose prefix was announced, and that have no scores yet
        self._quiet: asyncio.Future[None] | None = None
        self._ended = False

    async def run(self) -> Played:
        """Play it to the end, or until it is given up."""
        gc.collect()
        gc.freeze()  # what is alive now need not be looked at in the middle of a measurement
        gc.disable()
        begin_s = clock()
        self._zero_s = begin_s + _LEAD_IN_S - self._script.steps[0].at_s
        try:
            for step in self._script.steps:
                await self._until(step.at_s)
                if self._ended:
                    break
                self._send(step)
            await self._drain()
        finally:
            gc.enable()
            gc.unfreeze()
        seconds = clock() - begin_s
        return Played(tuple(self._heard), self._ended, seconds, self._skipped_s)

    async def _until(self, at_s: float) -> None:
        if self._idle_s is not None:
            await self._skip(at_s, self._idle_s)
        # Also when it is late: answers have to be read between sends.
        await asyncio.sleep(max(self._zero_s + at_s - clock(), 0.0))

    async def _skip(self, at_s: float, idle_s: float) -> None:
        """Wait until nothing is on its way or the step is due; leave out all but `idle_s` of the rest."""
        while (self._waiting or self._begun) and (left_s := self._zero_s + at_s - clock()) > idle_s:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=left_s - idle_s)
            self._quiet = None
        left_s = self._zero_s + at_s - clock()
        if not self._waiting and not self._begun and left_s > idle_s:
            self._zero_s -= left_s - idle_s
            self._skipped_s += left_s - idle_s

    def _send(self, step: Step) -> None:
        heard = self._heard[step.number]
        self._waiting += 1
        if step.kind is Kind.RANK:
            heard.sent_s, heard.status = clock() - self._zero_s, UNANSWERED
            # The clock's zero may be moved before the answer comes, but not while anything is on its way.
            done = partial(self._ranked, step.number, heard)
        elif step.kind is Kind.PREFIX:
            heard.signal_status = UNANSWERED
            self._begun.add(step.number)
            done = partial(self._signalled, heard)
        else:
            done = partial(self._stored, heard)
        self._doors[step.door].send(step.data, done)

    def _ranked(self, number: int, heard: Heard, status: int, body: bytes, at_s: float) -> None:
        heard.status, heard.ranked, heard.done_s = status, body, at_s - self._zero_s
        self._begun.discard(number)
        if self._script.requests[number].counted and not self._good(heard):
            self._bad_left -= 1
            self._ended = self._ended or self._bad_left < 0
        self._over()

    def _good(self, heard: Heard) -> bool:
        if heard.status != 200 or 1000 * heard.latency_s > self._script.limits.b_rank_ms:
            return False
        place = heard.ranked.find(_PATH) + len(_PATH)
        return not heard.ranked.startswith(_SHORTENED, place)

    def _signalled(self, heard: Heard, status: int, body: bytes, at_s: float) -> None:
        heard.signal_status, heard.signalled = status, body
        self._over()

    def _stored(self, heard: Heard, status: int, body: bytes, at_s: float) -> None:
        heard.events_status = status if status != 200 else heard.events_status
        self._over()

    def _over(self) -> None:
        self._waiting -= 1
        if not self._waiting and not self._begun and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    async def _drain(self) -> None:
        end_s = clock() + self._script.limits.b_pipe_ms / 1000 + _GRACE_S
        while self._waiting and clock() < end_s:
            await asyncio.sleep(0.005)


async def store(doors: Sequence[Door], script: Script) -> None:
    """Store what the script's users have before it; the servers have it in memory then.

    Raises:
        BackendError: a server does not take it.
    """
    for number, door in enumerate(doors):
        mine = [data for home, data in script.stored if home == number]
        await store_users(door, mine, [name for home, name in script.names if home == number])


async def store_users(door: Door, events: Sequence[bytes], names: Sequence[str]) -> None:
    """Ask for every user once, then send `events`: the histories grow in the server's memory.

    Raises:
        BackendError: the server does not take them.
    """
    await _each(door, [bare("GET", f"/v1/users/{name}/state") for name in names])
    await _each(door, events)


async def forget(doors: Sequence[Door], script: Script) -> None:
    """Delete the script's users.

    Raises:
        BackendError: a server does not.
    """
    for number, door in enumerate(doors):
        await _each(
            door, [bare("DELETE", f"/v1/users/{name}") for home, name in script.names if home == number]
        )


async def _each(door: Door, requests: Sequence[bytes]) -> None:
    left = iter(requests)

    async def some() -> None:
        for request in left:
            await door.ask(request)

    await asyncio.gather(*(some() for _ in range(_SETUP_PARALLEL)))
