"""Waiting for an answer for as long as the client does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from relaygr.core.errors import CancelledError, DeadlineError

Result = TypeVar("Result")
Gone = Callable[[], Awaitable[object]]
"""Returns when the client has gone away."""


class ClientGoneError(CancelledError):
    """The client disconnected before there was an answer."""


class Work(Protocol):
    """Something in a queue or running, which may be given up: no effect on what is done."""

    def cancel(self) -> object: ...


async def answered(
    job: Work, future: asyncio.Future[Result], gone: Gone | None, left_s: float | None = None
) -> Result:
    """The result of `job`, which is cancelled when `gone` returns first, or nobody waits any more.

    Args:
        future: that of `job` on this event loop.
        left_s: seconds to wait at most; None for a job that ends by itself at its deadline.

    When this ends without an answer, nobody waits for the job in its queue any more: who then gives a place
    back gives none away that the queue has not.

    Raises:
        ClientGoneError: `gone` returned first.
        DeadlineError: `left_s` were over first.
    """
    watch = None if gone is None else asyncio.ensure_future(gone())
    try:
        either: list[asyncio.Future[Any]] = [future] if watch is None else [future, watch]
        ended, _ = await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        if not ended:
            raise DeadlineError("the deadline passed before there was an answer")
    finally:
        if watch is not None:
            watch.cancel()
        # No effect on one that is done. Cancelling only the future would reach the job a turn of the loop
        # later, and cancelling only the job would leave its error with the future, for nobody to read.
        job.cancel()
        future.cancel()
    raise ClientGoneError("the client disconnected")
