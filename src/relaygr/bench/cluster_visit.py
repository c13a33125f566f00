"""One visit of a user to a cluster: the signal, the lead time, the ranking."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.bench.cluster_caller import Caller, Connect, LapError, Ranking
from relaygr.bench.cluster_tally import Visit
from relaygr.bench.soak_people import Sample

Ints = npt.NDArray[np.int64]

SPARE_MS = 1000.0  # of the client itself, beyond a lap's deadline
_LEAD_S = 0.05
_FIRST_TIME_S, _GAP_S = 1_700_000_000, 600
_ITEMS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What visits ask: histories of `events` events, `candidates` to rank; `deadline_ms` is of each lap."""

    events: int
    candidates: int
    deadline_ms: float
    seed: int


def drawn(asked: Asked, number: int) -> tuple[Ints, Ints, Ints]:
    """Items and times of a user's events, and the candidates; always the same for one number."""
    draw = np.random.default_rng((asked.seed, number))
    items = draw.integers(1, _ITEMS, asked.events)
    times = _FIRST_TIME_S + _GAP_S * np.arange(asked.events)
    return items, times, draw.integers(1, _ITEMS, asked.candidates)


class Visitor:
    """Makes visits, at one address after the other; `async with` closes its clients."""

    def __init__(self, asked: Asked, connect: Connect, addresses: Callable[[], list[str]]) -> None:
        self._asked, self._connect, self._addresses = asked, connect, addresses
        self._clients: dict[str, Caller] = {}
        self._turn = itertools.count()
        self._begin_s = time.perf_counter()
        self.samples: list[Sample] = []

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close()

    def now_s(self) -> float:
        """Seconds since this was made; the clock of visits."""
        return time.perf_counter() - self._begin_s

    async def visit(self, number: int, *, sample: bool = False) -> Visit:
        """Of user `number`, whose history and candidates are always the same; never raises LapError.

        With `sample` what was answered is kept, to be scored again.
        """
        asked, user = self._asked, f"user-{number}"
        items, times, candidates = drawn(asked, number)
        past = items.tolist(), times.tolist()
        client = self._client()
        first = None
        sent_s = self.now_s()
        try:
            signal = await client.prefix(user, *past, asked.deadline_ms)
            first = signal.owner
            await asyncio.sleep(_LEAD_S)
            sent_s = self.now_s()
            answer = await client.rank(user, *past, candidates.tolist(), asked.deadline_ms, signal)
        except LapError as error:
            at_s = self.now_s()
            return Visit(user=user, at_s=at_s, took_ms=1000 * (at_s - sent_s), first=first, error=str(error))
        at_s = self.now_s()
        if sample:
            self._keep(user, items, times, candidates, answer)
        return Visit(
            user=user,
            at_s=at_s,
            took_ms=1000 * (at_s - sent_s),
            first=first,
            second=answer.owner,
            path=answer.path,
        )

    def _client(self) -> Caller:
        addresses = self._addresses()
        url = addresses[next(self._turn) % len(addresses)]
        if url not in self._clients:
            self._clients[url] = self._connect(url)
        return self._clients[url]

    def _keep(self, user: str, items: Ints, times: Ints, candidates: Ints, answer: Ranking) -> None:
        self.samples.append(
            Sample(
                user=user,
                items=items.tolist(),
                times=times.tolist(),
                events=len(items),
                candidates=candidates.tolist(),
                scores=answer.scores,
                model=answer.model,
                path=answer.path,
                served_tokens=answer.served_tokens,
            )
        )
