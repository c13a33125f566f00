"""Waiting for an answer for as long as the client does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from relaygr.core.errors import CancelledError

Result = TypeVar("Result")
Gone = Callable[[], Awaitable[object]]
"""Returns when the client has gone away."""


class ClientGoneError(CancelledError):
    """The client disconnected before there was an answer."""


async def answered(future: asyncio.Future[Result], gone: Gone | None) -> Result:
    """The result of `future`, which is cancelled when `gone` returns first, or nobody waits any more.

    Raises:
        ClientGoneError: `gone` returned first.
    """
    if gone is None:
        return await future
    watch = asyncio.ensure_future(gone())
    try:
        await asyncio.wait((future, watch), return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
    finally:
        watch.cancel()
        # No effect on one that is done; otherwise the job ends, and what has not begun never will.
        future.cancel()
    raise ClientGoneError("the client disconnected")
