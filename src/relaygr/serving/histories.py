"""The history that a request is about: the one that came with it, or the stored one, in the time there is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from relaygr.core.errors import DeadlineError
from relaygr.engine import UserHistory
from relaygr.engine.deadlines import MIN_DEADLINE_MS
from relaygr.serving import wire
from relaygr.serving.bodies import inline_history
from relaygr.serving.metrics import Metrics
from relaygr.serving.users import Owner, Users, WholeHistory

Found = TypeVar("Found")


class Histories:
    """Finds histories.

    Args:
        slots: values of a profile.
        limit: most events of a history that comes with a request.
    """

    def __init__(self, users: Users, slots: int, limit: int, metrics: Metrics) -> None:
        self._users, self._slots, self._limit, self._metrics = users, slots, limit, metrics

    async def in_time(
        self, kind: str, owner: Owner, inline: wire.History | None, budget_ms: float
    ) -> tuple[UserHistory, float]:
        """The history, and what is left of the milliseconds; a slow store counts against them.

        Raises:
            DeadlineError: they are over; counted as `kind`.
            RequestError: what came with the request is no history.
        """
        held = self._users.held(owner) if inline is None else None
        if held is not None:
            return held, budget_ms
        return await self._timed(kind, self._history(owner, inline), budget_ms)

    async def whole_in_time(self, kind: str, owner: Owner, budget_ms: float) -> tuple[WholeHistory, float]:
        """The stored history with the items of all its events; else as `in_time`."""
        return await self._timed(kind, self._users.whole(owner), budget_ms)

    async def _timed(
        self, kind: str, reading: Coroutine[Any, Any, Found], budget_ms: float
    ) -> tuple[Found, float]:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(budget_ms / 1000):
                found = await reading
        except TimeoutError as error:
            late = DeadlineError("the deadline passed before the history was read")
            self._metrics.failed(kind, late)
            raise late from error
        return found, max(budget_ms - (time.monotonic() - begun) * 1000, MIN_DEADLINE_MS)

    async def _history(self, owner: Owner, inline: wire.History | None) -> UserHistory:
        if inline is None:
            return await self._users.get(owner)
        return inline_history(owner, inline, self._slots, self._limit)
