"""The typed client as `relaygr bench cluster` needs it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from relaygr.bench.cluster_caller import LapError, Signal
from relaygr.client import AsyncClient, ClientError, Door, PrefixSignal, Ranking, history

_SLOW_MS = 60_000.0  # of a change of models
# Nothing is far away here: where connecting takes long, it is because this process had to wait.
_CONNECT_MS = 10_000.0
_A = TypeVar("_A")


class ClusterClient:
    """One address, with the client's own retries; see `bench.cluster_caller.Caller`."""

    def __init__(self, url: str) -> None:
        self._client = AsyncClient(Door(url, timeout_ms=_SLOW_MS, connect_ms=_CONNECT_MS, sessions=True))

    async def prefix(self, user: str, items: list[int], times: list[int], deadline_ms: float) -> PrefixSignal:
        return await _told(self._client.prefix(user, history=history(items, times), deadline_ms=deadline_ms))

    async def rank(
        self,
        user: str,
        items: list[int],
        times: list[int],
        candidates: list[int],
        deadline_ms: float,
        signal: Signal,
    ) -> Ranking:
        past = history(items, times)
        return await _told(
            self._client.rank(user, candidates, history=past, deadline_ms=deadline_ms, hint=signal.hint)
        )

    async def reload(self, model: str) -> None:
        await _told(self._client.reload(model))

    async def close(self) -> None:
        await self._client.close()


async def _told(answer: Awaitable[_A]) -> _A:
    try:
        return await answer
    except ClientError as error:
        raise LapError(type(error).__name__) from error
