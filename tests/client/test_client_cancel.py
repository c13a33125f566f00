"""Calls that are cancelled leave connections to the others."""

from __future__ import annotations

import asyncio
import random

import pytest
from cascade_server import StubServer, answering, hanging, ranked, run

from relaygr.client import AsyncClient, DeadlineExceededError, Door


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("deadline_ms", [None, 5.0])
def test_calls_cancelled_again_and_again(times: int, deadline_ms: float | None) -> None:
    """Also when the deadline and the caller end a call at the same moment."""
    rng = random.Random(times)
    with StubServer(rank=hanging) as server:

        async def main() -> None:
            async with AsyncClient(Door(server.url, connections=4)) as client:
                for _ in range(60):
                    call = asyncio.create_task(client.rank("u", [1], deadline_ms=deadline_ms))
                    await asyncio.sleep(rng.uniform(0.0, 0.007))
                    for _ in range(times):
                        call.cancel()
                        await asyncio.sleep(0)
                    with pytest.raises((asyncio.CancelledError, DeadlineExceededError)):
                        await call
                while any(not seen.left for seen in server.seen):
                    await asyncio.sleep(0.001)
                server.rank = answering(ranked(1, None))
                found = await asyncio.gather(*(client.rank("u", [1]) for _ in range(8)))
                assert [ranking.path for ranking in found] == ["hit"] * 8

        run(main)
