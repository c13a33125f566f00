"""A pipeline's own retrieval and pre-processing between the two laps of a request."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any

from relaygr.client.aio import AsyncClient
from relaygr.client.answers import PrefixSignal, Ranking
from relaygr.client.calls import History, Ints
from relaygr.client.course import Asked, Counts, Plan, Stage, Watch, candidates_of, missing, nothing
from relaygr.client.recommendation import Admission, Recommendation, Signal, Timings, best


class Lap:
    """One request whose signal is on its way; made by `Cascade.lap`."""

    def __init__(self, client: AsyncClient, plan: Plan, asked: Asked, enabled: bool) -> None:
        self._client, self._plan, self._asked = client, plan, asked
        self._watch = Watch(plan.deadline_ms, asked.request_id, time.monotonic())
        self._task: asyncio.Task[PrefixSignal] | None = None
        if enabled:
            send = client.prefix(asked.user, **asked.signal(plan))
            self._task = asyncio.create_task(send, name="relaygr-signal")
            self._task.add_done_callback(_look_at)

    @property
    def signal(self) -> Signal:
        """What is known of the signal now; settled after the `async with` block."""
        if self._task is None:
            return Signal(Admission.NOT_SENT, "disabled")
        if not self._task.done() or self._task.cancelled():
            return Signal(Admission.UNANSWERED)
        error = self._task.exception()
        return Signal.answered(self._task.result()) if error is None else Signal.failed(error)

    @property
    def timings(self) -> Timings:
        return self._watch.timings(time.monotonic())

    async def rank(
        self,
        candidates: Ints,
        *,
        top_k: int | None = None,
        query_time: int | Ints | None = None,
        output: str = "logits",
    ) -> Ranking:
        """Rank with what is left of the time, at the member that the signal was answered by, if it was."""
        self._watch.begin("ranking")
        start_s = time.monotonic()
        both = self._asked.rank(self._plan, self._watch.left_ms(start_s), self.signal.hint)
        self._watch.lead(start_s)
        try:
            return await self._client.rank(
                self._asked.user, candidates, query_time=query_time, output=output, top_k=top_k, **both
            )
        finally:
            self._watch.took("ranking", time.monotonic() - start_s)

    async def _run(self, stage: str, function: Stage, executor: Executor | None, *arguments: Any) -> Any:
        self._watch.begin(stage)
        start_s = time.monotonic()
        try:
            return await _call(function, executor, arguments)
        finally:
            self._watch.took(stage, time.monotonic() - start_s)

    async def _settle(self) -> None:
        """Give up a signal that has no answer yet; nobody will need it."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        self._watch.end(time.monotonic())


class Cascade:
    """Wires retrieval and pre-processing between the two laps of the relay.

    The prefix signal goes out when a request begins, in a task of its own. Nothing waits for its answer:
    late, refused or failed, it changes neither what is ranked nor when.

    Args:
        client: stays the caller's, who closes it.
        retrieve: `(user, request)` to whatever it finds. preprocess: `(user, request, found)` to candidate
            ids; without it `retrieve` returns those. Coroutine functions run in the event loop and must not
            block it, others in a thread, which goes on when a request is cancelled.
        budget_ms: what ranking should take at most, if the server can by reading less of the history.
        deadline_ms: for the whole request; its stages are cancelled then.
        candidates: how many there usually are; helps the server to decide on the signal.
        enabled: False sends no signals; may be changed at any time.
        executor: for functions that are no coroutines; by default the event loop's, of few threads.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        retrieve: Stage | None = None,
        preprocess: Stage | None = None,
        budget_ms: float | None = None,
        deadline_ms: float | None = None,
        candidates: int | None = None,
        enabled: bool = True,
        executor: Executor | None = None,
    ) -> None:
        self._client, self._plan = client, Plan(budget_ms, deadline_ms, candidates)
        self._retrieve, self._preprocess, self._executor = retrieve, preprocess, executor
        self._counts = Counts()
        self.enabled = enabled

    @property
    def signals(self) -> dict[Admission, int]:
        """How many signals ended how."""
        return self._counts.read()

    async def recommend(
        self,
        user: str,
        request: Any = None,
        *,
        top_k: int | None = None,
        query_time: int | Ints | None = None,
        history: History | None = None,
        output: str = "logits",
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Recommendation:
        """The best candidates for `user`, all of them without `top_k`; `request` is passed to the stages.

        Raises:
            DeadlineExceededError: the time is up. Besides, what the stages and `AsyncClient.rank` raise.
        """
        of_both = {"history": history, "request_id": request_id, "traceparent": traceparent}
        async with self.lap(user, **of_both) as lap:  # type: ignore[arg-type]
            candidates = await self._candidates(lap, user, request)
            wanted = len(candidates) if top_k is None else top_k
            ranking = None
            if candidates:
                ranking = await lap.rank(candidates, top_k=wanted, query_time=query_time, output=output)
        items = [] if ranking is None else best(candidates, ranking)
        return Recommendation(user, items, candidates, ranking, lap.signal, lap.timings)

    @asynccontextmanager
    async def lap(
        self,
        user: str,
        *,
        history: History | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> AsyncIterator[Lap]:
        """Send the signal, and rank with `Lap.rank` inside the block; for pipelines with stages of their own.

        Raises:
            DeadlineExceededError: the block took longer than `deadline_ms`; it is cancelled then.
        """
        asked = Asked.of(user, history, request_id, traceparent)
        deadline_ms = self._plan.deadline_ms
        lap = Lap(self._client, self._plan, asked, self.enabled)
        try:
            async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000) as limit:
                yield lap
        except TimeoutError as error:
            if limit.expired():
                raise lap._watch.late() from error
            raise
        finally:
            try:
                await lap._settle()
            finally:
                self._counts.add(lap.signal.admission)

    async def _candidates(self, lap: Lap, user: str, request: Any) -> list[int]:
        if self._retrieve is None:
            raise missing()
        found = await lap._run("retrieval", self._retrieve, self._executor, user, request)
        if self._preprocess is not None and not nothing(found):
            found = await lap._run("pre-processing", self._preprocess, self._executor, user, request, found)
        return candidates_of(found)


async def _call(function: Stage, executor: Executor | None, arguments: tuple[Any, ...]) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await function(*arguments)
    run = contextvars.copy_context().run
    found = await asyncio.get_running_loop().run_in_executor(executor, run, _guarded, function, arguments)
    return await found if inspect.isawaitable(found) else found


def _guarded(function: Stage, arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:  # as coroutines do; no future can carry it
        raise RuntimeError(f"{function!r} raised StopIteration") from error


def _look_at(task: asyncio.Task[PrefixSignal]) -> None:
    """Take notice of an exception, so that nothing complains when nobody asks for it."""
    if not task.cancelled():
        task.exception()
