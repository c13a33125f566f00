"""Open-loop load: every request is sent when it is due, whatever became of the ones before.

Latency counts from the time a request was due. A closed loop would send less the slower the server gets, and
so leave out the very requests that wait.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine

import msgspec

from relaygr.bench.serve_arrivals import arrivals
from relaygr.bench.serve_report import LoadResult
from relaygr.bench.serve_spec import LoadSpec
from relaygr.bench.serve_tally import Tally
from relaygr.bench.serve_users import Crowd
from relaygr.bench.serve_wire import READ_PREFIX, READ_RANKING, Sent, Wire

_SETUP_PARALLEL = 8
_PROGRESS_S = 0.5
MISSED = Sent(0, b"", "missed")

Progress = Callable[[str], None]


class Load:
    """One stretch of load on one server."""

    def __init__(self, wire: Wire, crowd: Crowd, spec: LoadSpec) -> None:
        self._wire, self._crowd, self._spec = wire, crowd, spec
        self._tally = Tally(spec.deadline_ms)
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin_s = 0.0
        self._on_their_way = 0

    async def run(self, progress: Progress = lambda text: None) -> LoadResult:
        """Send everything that is due, wait for what is on its way, count what was due after the warm-up."""
        spec = self._spec
        whole_s, shown_s, due_s = spec.warmup_s + spec.duration_s, 0.0, arrivals(spec)
        gc.collect()
        gc.freeze()  # what is alive now need not be looked at in the middle of a measurement
        self._begin_s = time.perf_counter()
        try:
            while (at_s := next(due_s)) < whole_s:
                await self._sleep_until(at_s)
                self._visit(at_s, counted=at_s >= spec.warmup_s)
                if at_s - shown_s > _PROGRESS_S:
                    shown_s = at_s
                    progress(
                        f"{at_s:.0f} of {whole_s:.0f} s at {spec.rate:g}/s, {len(self._tasks)} on their way"
                    )
            while self._tasks:
                await asyncio.wait(set(self._tasks))
        finally:
            for task in self._tasks:
                task.cancel()
            gc.unfreeze()
        return self._tally.result(spec.rate, spec.duration_s)

    def _visit(self, at_s: float, *, counted: bool) -> None:
        if counted:
            self._tally.due()
        user, spec = self._crowd.draw(), self._spec
        if spec.prefix or spec.new_events:
            self._start(self._announce(user, at_s, counted))
        self._start(self._rank(user, at_s + spec.lead_ms / 1000, counted))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _announce(self, user: int, due_s: float, counted: bool) -> None:
        """New events, then the prefix signal, which is due when they are stored."""
        spec = self._spec
        if spec.new_events:
            sent = await self._send("/v1/events", self._crowd.events(user, spec.new_events))
            self._count("events", "all", sent.what if not sent.ok else "", due_s, counted)
            due_s = self._now_s()
        if spec.prefix:
            sent = await self._send("/v1/prefix", self._crowd.prefix(user))
            path, trouble = "", sent.what
            if sent.ok:
                try:
                    path, trouble = READ_PREFIX.decode(sent.body).admission, ""
                except msgspec.DecodeError:
                    trouble = "bad answer"
            self._count("prefix", path, trouble, due_s, counted)

    async def _rank(self, user: int, due_s: float, counted: bool) -> None:
        body = self._crowd.rank(user)
        await self._sleep_until(due_s)
        lag_s = self._now_s() - due_s
        sent = await self._send("/v1/rank", body)
        path, trouble = "", sent.what
        if sent.ok:
            try:
                answer = READ_RANKING.decode(sent.body)
                path, trouble = answer.path, ""
                if counted:
                    self._tally.served(answer.model, answer.tokens_cached, answer.served_tokens)
            except msgspec.DecodeError:
                trouble = "bad answer"
        if counted and sent is not MISSED:
            self._tally.sent(lag_s)
        self._count("rank", path, trouble, due_s, counted)

    async def _send(self, path: str, body: bytes) -> Sent:
        if self._on_their_way >= self._spec.connections:
            return MISSED
        self._on_their_way += 1
        try:
            return await self._wire.send("POST", path, body)
        finally:
            self._on_their_way -= 1

    def _count(self, stage: str, path: str, trouble: str, due_s: float, counted: bool) -> None:
        if not counted:
            return
        if trouble:
            self._tally.failed(stage, trouble)
        else:
            self._tally.done(stage, path, self._now_s() - due_s)

    def _now_s(self) -> float:
        return time.perf_counter() - self._begin_s

    async def _sleep_until(self, at_s: float) -> None:
        left_s = at_s - self._now_s()
        # Also when it is late: answers have to be read between sends.
        await asyncio.sleep(max(left_s, 0.0))


async def store_users(wire: Wire, crowd: Crowd, progress: Progress = lambda text: None) -> None:
    """Store every user's history; BackendError if the server does not take it."""

    async def store(number: int) -> None:
        for body in crowd.stored(number):
            await wire.demand("POST", "/v1/events", body)

    await _each(len(crowd.names), store, "stored", progress)


async def remove_users(wire: Wire, crowd: Crowd, progress: Progress = lambda text: None) -> int:
    """Delete every user of the load; returns how many the server did not delete."""
    left = 0

    async def remove(number: int) -> None:
        nonlocal left
        sent = await wire.send("DELETE", f"/v1/users/{crowd.names[number]}")
        left += not sent.ok  # after the wait: others count meanwhile

    await _each(len(crowd.names), remove, "removed", progress)
    return left


async def _each(
    count: int, work: Callable[[int], Coroutine[None, None, None]], done: str, progress: Progress
) -> None:
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await work(number)
            if number % 16 == 0:
                progress(f"{number} of {count} users {done}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_SETUP_PARALLEL):
            group.create_task(some())
