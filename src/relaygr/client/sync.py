"""The client for threads."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import httpx

from relaygr.client import answers, calls
from relaygr.client.calls import A, Call, History, Ints
from relaygr.client.door import Door
from relaygr.client.exchange import Again, Exchange, Outgoing, Reply
from relaygr.client.status import Status


class Client:
    """Speaks to one server over kept connections; may be shared by threads; close it, or use `with`.

    Every call takes `request_id` (made if missing; the same for all attempts) and `traceparent` (passed on).
    Calls that may be done twice are repeated when the connection breaks or the server answers 503, within
    `Door.retries` and the call's own time; others never. The time bounds connecting, sending and each wait
    for bytes; an answer that trickles in may overrun it by one such wait.

    Raises (every call):
        RequestRejectedError: the request is wrong. OverloadedError: no room. DeadlineExceededError: no answer
        in time. UnavailableError: nobody answered. BadAnswerError: the server failed.
    """

    def __init__(self, door: Door | str, transport: httpx.BaseTransport | None = None) -> None:
        """`transport` stands in for the network. Proxies of the environment are not used."""
        door = Door(door) if isinstance(door, str) else door
        self._terms = door.terms
        self._http = httpx.Client(
            base_url=door.url, headers=door.headers, limits=door.limits, transport=transport, trust_env=False
        )

    def append(
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
        return self._call(calls.append(user, items, timestamps, actions, key), request_id, traceparent)

    def prefix(
        self,
        user: str,
        *,
        history: History | None = None,
        deadline_ms: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.PrefixSignal:
        """Say that `user` will be ranked soon; answers at once, the prefix is computed behind it."""
        return self._call(calls.prefix(user, history, deadline_ms), request_id, traceparent)

    def rank(
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
        return self._call(call, request_id, traceparent)

    def set_profile(
        self,
        user: str,
        contextual: Ints,
        utc_offset_s: int = 0,
        *,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> answers.Profile:
        """Replace a user's profile slots and clock offset."""
        return self._call(calls.set_profile(user, contextual, utc_offset_s), request_id, traceparent)

    def delete(
        self, user: str, *, request_id: str | None = None, traceparent: str | None = None
    ) -> answers.Deleted:
        """Forget a user: nothing is stored, cached or on its way when it returns."""
        return self._call(calls.delete(user), request_id, traceparent)

    def state(
        self, user: str, *, request_id: str | None = None, traceparent: str | None = None
    ) -> answers.UserState:
        """What is held of a user."""
        return self._call(calls.state(user), request_id, traceparent)

    def models(self, *, request_id: str | None = None, traceparent: str | None = None) -> list[answers.Model]:
        """The models that are served."""
        return self._call(calls.models(), request_id, traceparent).models

    def reload(
        self, path: str | None = None, *, request_id: str | None = None, traceparent: str | None = None
    ) -> answers.Reloaded:
        """Serve the model in the server's folder `path`, or read the present folder again; never repeated."""
        return self._call(calls.reload(path), request_id, traceparent)

    def status(self, *, request_id: str | None = None, traceparent: str | None = None) -> Status:
        """The figures of the status page."""
        return self._call(calls.status(), request_id, traceparent)

    def health(self, *, request_id: str | None = None, traceparent: str | None = None) -> answers.Health:
        """Whether the server takes requests; one that is starting or stopping answers too."""
        return self._call(calls.health(), request_id, traceparent)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, call: Call[A], request_id: str | None, traceparent: str | None) -> A:
        exchange = Exchange(call, self._terms, time.monotonic(), request_id, traceparent)
        while True:
            outgoing = exchange.outgoing(time.monotonic())
            try:
                reply = self._attempt(exchange, outgoing)
            except (httpx.RequestError, TimeoutError) as error:
                result: A | Again = exchange.failed(error, time.monotonic())
            else:
                result = exchange.answered(reply, time.monotonic())
            if not isinstance(result, Again):
                return result
            time.sleep(result.pause_s)

    def _attempt(self, exchange: Exchange[A], outgoing: Outgoing) -> Reply:
        end_s = time.monotonic() + outgoing.timeout_s
        body = bytearray()
        with self._http.stream(
            outgoing.method,
            outgoing.path,
            headers=outgoing.headers,
            content=outgoing.content,
            timeout=outgoing.timeout,
        ) as response:
            for piece in response.iter_bytes():
                body += piece
                if len(body) > self._terms.answer_bytes:
                    raise exchange.too_long()
                if time.monotonic() > end_s:
                    raise TimeoutError
        return Reply(response.status_code, bytes(body))
