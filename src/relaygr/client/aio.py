"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

import httpx

from relaygr.client import answers, calls
from relaygr.client.calls import A, Call, History, Ints
from relaygr.client.door import Door
from relaygr.client.exchange import Again, Exchange, Outgoing, Reply
from relaygr.client.status import Status


class AsyncClient:
    """`Client` for coroutines of one event loop; close it, or use `async with`.

    Calls, repetitions and errors are those of `Client`. The time of a call is exact. A cancelled call closes
    its connection, which tells the server.
    """

    def __init__(self, door: Door | str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` stands in for the network. Proxies of the environment are not used."""
        door = Door(door) if isinstance(door, str) else door
        self._terms = door.terms
        self._http = httpx.AsyncClient(
            base_url=door.url, headers=door.headers, limits=door.limits, transport=transport, trust_env=False
        )

    async def append(
        self,
        user: str,
        items: Ints,
        timestamps: Ints,
        actions: Ints | None = None,
        *,
        key: str | None = "",
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.Appended:
        """Store events behind a user's; durable when it returns.

        `key` makes a repetition harmless: "" makes one up, None sends none and then never repeats.
        """
        return await self._call(calls.append(user, items, timestamps, actions, key), request_id, traceparent)

    async def prefix(
        self,
        user: str,
        *,
        history: History | None = None,
        deadline_ms: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.PrefixSignal:
        """Say that `user` will be ranked soon; answers at once, the prefix is computed behind it."""
        return await self._call(calls.prefix(user, history, deadline_ms), request_id, traceparent)

    async def rank(
        self,
        user: str,
        candidates: Ints,
        *,
        query_time: int | Ints | None = None,
        history: History | None = None,
        deadline_ms: float | None = None,
        output: str = "logits",
        top_k: int | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.Ranking:
        """Score candidates; `output` is "logits" or "probabilities"."""
        call = calls.rank(user, candidates, query_time, history, deadline_ms, output, top_k)
        return await self._call(call, request_id, traceparent)

    async def set_profile(
        self,
        user: str,
        contextual: Ints,
        utc_offset_s: int = 0,
        *,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.Profile:
        """Replace a user's profile slots and clock offset."""
        return await self._call(calls.set_profile(user, contextual, utc_offset_s), request_id, traceparent)

    async def delete(
        self, user: str, *, request_id: str | None = None, traceparent: str | None = None
    ) -> answers.Deleted:
        """Forget a user: nothing is stored, cached or on its way when it returns."""
        return await self._call(calls.delete(user), request_id, traceparent)

    async def state(
        self, user: str, *, request_id: str | None = None, traceparent: str | None = None
    ) -> answers.UserState:
        """What is held of a user."""
        return await self._call(calls.state(user), request_id, traceparent)

    async def models(
        self, *, request_id: str | None = None, traceparent: str | None = None
    ) -> list[answers.Model]:
        """The models that are served."""
        return (await self._call(calls.models(), request_id, traceparent)).models

    async def reload(
        self, path: str | None = None, *, request_id: str | None = None, traceparent: str | None = None
    ) -> answers.Reloaded:
        """Serve the model in the server's folder `path`, or read the present folder again; never repeated."""
        return await self._call(calls.reload(path), request_id, traceparent)

    async def status(self, *, request_id: str | None = None, traceparent: str | None = None) -> Status:
        """The figures of the status page."""
        return await self._call(calls.status(), request_id, traceparent)

    async def health(
        self, *, request_id: str | None = None, traceparent: str | None = None
    ) -> answers.Health:
        """Whether the server takes requests; one that is starting or stopping answers too."""
        return await self._call(calls.health(), request_id, traceparent)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, call: Call[A], request_id: str | None, traceparent: str | None) -> A:
        exchange = Exchange(call, self._terms, time.monotonic(), request_id, traceparent)
        while True:
            outgoing = exchange.outgoing(time.monotonic())
            try:
                async with asyncio.timeout(outgoing.timeout_s):
                    reply = await self._attempt(exchange, outgoing)
            except (httpx.RequestError, TimeoutError) as error:
                result: A | Again = exchange.failed(error, time.monotonic())
            else:
                result = exchange.answered(reply, time.monotonic())
            if not isinstance(result, Again):
                return result
            await asyncio.sleep(result.pause_s)

    async def _attempt(self, exchange: Exchange[A], outgoing: Outgoing) -> Reply:
        body = bytearray()
        async with self._http.stream(
            outgoing.method,
            outgoing.path,
            headers=outgoing.headers,
            content=outgoing.content,
            timeout=outgoing.timeout,
        ) as response:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._terms.answer_bytes:
                    raise exchange.too_long()
        return Reply(response.status_code, bytes(body))
