"""Users who send a signal and rank, with the client's retries, while something happens to a cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import count

import numpy as np

from relaygr.bench.cluster_tally import Visit
from relaygr.bench.soak_people import Sample
from relaygr.client import AsyncClient, ClientError, Door, history

DEADLINE_MS = 15_000.0
HUNG_S = 40.0  # a visit has two laps
EVENTS, CANDIDATES = 40, 8


def person(number: int) -> tuple[list[int], list[int], list[int]]:
    """Items, times and candidates of a user: always the same."""
    draw = np.random.default_rng((7, number))
    items, candidates = draw.integers(1, 1 << 20, EVENTS), draw.integers(1, 1 << 20, CANDIDATES)
    return items.tolist(), (1_700_000_000 + 600 * np.arange(EVENTS)).tolist(), candidates.tolist()


class Load:
    """Visits of `users` from `first` on in turn, `at_once` at a time, until the end of the block."""

    def __init__(
        self, url: str, users: int, *, first: int = 0, at_once: int = 4, limit: int | None = None
    ) -> None:
        self.url, self.users, self.first, self.at_once, self.limit = url, users, first, at_once, limit
        self.visits: list[Visit] = []
        self.samples: list[Sample] = []
        self.hung = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * HUNG_S)
        assert not self._thread.is_alive(), "the load does not end"

    def wait(self) -> None:
        """Until `limit` visits are over."""
        self._thread.join(600)
        assert not self._thread.is_alive()

    def more(self, number: int, timeout_s: float = 120.0) -> list[Visit]:
        """The next visits."""
        begin, end = len(self.visits), time.monotonic() + timeout_s
        while len(self.visits) < begin + number:
            assert time.monotonic() < end, f"{len(self.visits) - begin} of {number} visits in {timeout_s} s"
            time.sleep(0.05)
        return self.visits[begin:]

    async def _run(self) -> None:
        numbers = count()
        async with AsyncClient(Door(self.url, timeout_ms=DEADLINE_MS)) as client:
            await asyncio.gather(*(self._keep_on(client, numbers) for _ in range(self.at_once)))

    async def _keep_on(self, client: AsyncClient, numbers: Iterator[int]) -> None:
        while not self._stop.is_set():
            number = next(numbers)
            if self.limit is not None and number >= self.limit:
                return
            user = self.first + number % self.users
            try:
                async with asyncio.timeout(HUNG_S):
                    await self._visit(client, user)
            except TimeoutError:
                self.hung += 1

    async def _visit(self, client: AsyncClient, number: int) -> None:
        items, times, candidates = person(number)
        user, past, first = f"user-{number}", history(items, times), None
        try:
            signal = await client.prefix(user, history=past, deadline_ms=DEADLINE_MS)
            first, began_s = signal.owner, time.monotonic()
            answer = await client.rank(
                user, candidates, history=past, deadline_ms=DEADLINE_MS, hint=signal.hint
            )
        except ClientError as error:
            at_s = time.monotonic()
            self.visits.append(Visit(user=user, at_s=at_s, took_ms=0.0, first=first, error=repr(error)))
            return
        at_s = time.monotonic()
        took_ms = 1000 * (at_s - began_s)
        self.visits.append(
            Visit(user=user, at_s=at_s, took_ms=took_ms, first=first, second=answer.owner, path=answer.path)
        )
        self.samples.append(
            Sample(
                user=user,
                items=items,
                times=times,
                events=len(items),
                candidates=candidates,
                scores=answer.scores,
                model=answer.model,
                path=answer.path,
                served_tokens=answer.served_tokens,
            )
        )
