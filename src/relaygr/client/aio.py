"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

from relaygr.client import answers, calls
from relaygr.client.answers import Hint
from relaygr.client.calls import A, Call, History, Ints
from relaygr.client.door import Door, trusted
from relaygr.client.exchange import Again, Exchange, Outgoing, Reply, Terms, hint_of
from relaygr.client.generation import Generation, ItemId
from relaygr.client.generation import generate as generate_call
from relaygr.client.slate import Attributes, Rule, Shown, Slate, Vectors
from relaygr.client.slate import slate as slate_call
from relaygr.client.status import Status


@dataclass(frozen=True, slots=True)
class _Lane:
    """Connections and a budget of retries, shared by some of the calls."""

    terms: Terms
    http: httpx.AsyncClient


class AsyncClient:
    """`Client` for coroutines of one event loop; close it, or use `async with`.

    Calls, repetitions and errors are those of `Client`. The time of a call is exact. A cancelled call closes
    its connection, which tells the server.
    """

    def __init__(self, door: Door | str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` stands in for the network. Proxies of the environment are not used."""
        door = Door(door) if isinstance(door, str) else door
        # Calls that go ahead of ranking have a lane of their own: a server that leaves them without an answer
        # takes neither connections nor retries from the calls that somebody waits for.
        self._lanes = {ahead: _Lane(door.terms, self._http(door, transport)) for ahead in (False, True)}

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
        candidates: int | None = None,
        generate: bool = False,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.PrefixSignal:
        """Say that `user` will be ranked soon; answers at once, the prefix is computed behind it.

        `candidates` is how many there will be, as far as it is known; with `generate` the prompt of a
        generation is encoded ahead as well.
        """
        return await self._call(
            calls.prefix(user, history, deadline_ms, candidates, generate), request_id, traceparent
        )

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
        budget_ms: float | None = None,
        hint: Hint | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.Ranking:
        """Score candidates; `output` is "logits" or "probabilities".

        `budget_ms` is what the server should take at most, if it can, by reading less of the history; more
        than is left of the deadline is as much as that. `hint` is the member that holds the prefix, as the
        answer to `prefix` names it.
        """
        call = calls.rank(user, candidates, query_time, history, deadline_ms, output, top_k, budget_ms, hint)
        return await self._call(call, request_id, traceparent)

    async def generate(
        self,
        user: str | None = None,
        *,
        token_ids: Ints | None = None,
        history: Iterable[ItemId] | None = None,
        text: str | None = None,
        beam_width: int | Sequence[int] | None = None,
        num_results: int | None = None,
        max_items: int | None = None,
        max_items_per_sid: int | None = None,
        normalization: str | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
        exclude_seen: bool = False,
        filters: Sequence[str] | None = None,
        unknown_items: str | None = None,
        seed: int | None = None,
        deadline_ms: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Generation:
        """Generate items for a stored user, tokens, item ids or a text: exactly one of the four.

        What is None is left to the server. With `exclude_seen` no item of the history is generated: of a
        user, of no stored event.
        """
        call = generate_call(
            user,
            token_ids=token_ids,
            history=history,
            text=text,
            beam_width=beam_width,
            num_results=num_results,
            max_items=max_items,
            max_items_per_sid=max_items_per_sid,
            normalization=normalization,
            allow=allow,
            deny=deny,
            exclude_seen=exclude_seen,
            filters=filters,
            unknown_items=unknown_items,
            seed=seed,
            deadline_ms=deadline_ms,
        )
        return await self._call(call, request_id, traceparent)

    async def slate(
        self,
        user: str,
        candidates: Ints | None = None,
        *,
        length: int | None = None,
        attributes: Attributes | None = None,
        vectors: Vectors | None = None,
        shown: Shown | None = None,
        rules: Sequence[Rule] | None = None,
        slots: Ints | None = None,
        consumed: int = 0,
        mode: str | None = None,
        unrestricted: bool = False,
        allow_short: bool = True,
        seed: int | None = None,
        explain: bool = True,
        allow_explore: bool = True,
        query_time: int | Ints | None = None,
        history: History | None = None,
        deadline_ms: float | None = None,
        hint: Hint | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Slate:
        """Rank candidates and make one list of them; without candidates the server generates some, if it can.

        What is None is left to the server. `attributes` and `vectors` are of the candidates; `shown` makes
        what earlier pages held; `rules` stand behind those of the server.
        """
        call = slate_call(
            user,
            candidates,
            length=length,
            attributes=attributes,
            vectors=vectors,
            shown=shown,
            rules=rules,
            slots=slots,
            consumed=consumed,
            mode=mode,
            unrestricted=unrestricted,
            allow_short=allow_short,
            seed=seed,
            explain=explain,
            allow_explore=allow_explore,
            query_time=query_time,
            history=history,
            deadline_ms=deadline_ms,
            hint=hint,
        )
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
        for lane in self._lanes.values():
            await lane.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @staticmethod
    def _http(door: Door, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=door.url,
            headers=door.headers,
            limits=door.limits,
            transport=transport,
            verify=trusted(),
            trust_env=False,
        )

    async def _call(self, call: Call[A], request_id: str | None, traceparent: str | None) -> A:
        lane = self._lanes[call.ahead]
        exchange = Exchange(call, lane.terms, time.monotonic(), request_id, traceparent)
        while True:
            outgoing = exchange.outgoing(time.monotonic())
            try:
                async with asyncio.timeout(outgoing.timeout_s):
                    reply = await self._attempt(lane, exchange, outgoing)
            except (httpx.RequestError, TimeoutError) as error:
                result: A | Again = exchange.failed(error, time.monotonic())
            else:
                result = exchange.answered(reply, time.monotonic())
            if not isinstance(result, Again):
                return result
            await asyncio.sleep(result.pause_s)

    async def _attempt(self, lane: _Lane, exchange: Exchange[A], outgoing: Outgoing) -> Reply:
        # A request that is cancelled again while its connection is being closed, by its caller and by its
        # deadline for instance, would leave the pool with a connection that it counts as busy for ever. In a
        # task of its own it is cancelled once.
        sending = asyncio.create_task(self._send(lane, exchange, outgoing))
        try:
            await asyncio.wait({sending})
        except asyncio.CancelledError:
            sending.cancel()
            await _ended(sending)
            raise
        return sending.result()

    async def _send(self, lane: _Lane, exchange: Exchange[A], outgoing: Outgoing) -> Reply:
        body = bytearray()
        async with lane.http.stream(
            outgoing.method,
            outgoing.path,
            headers=outgoing.headers,
            content=outgoing.content,
            timeout=outgoing.timeout,
        ) as response:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > lane.terms.answer_bytes:
                    raise exchange.too_long()
        return Reply(response.status_code, bytes(body), hint_of(response.headers))


async def _ended(task: asyncio.Task[Reply]) -> None:
    """Wait for the end of a task that was cancelled; that this one is cancelled again changes nothing."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # of use to nobody any more
