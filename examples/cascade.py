"""A recommendation request: retrieval runs, and meanwhile the user's history is encoded.

Run: python examples/cascade.py
"""

from __future__ import annotations

import asyncio
import random
import time

from server import running_server

from relaygr.client import AsyncClient, ClientError

ITEMS = 50_000
DEADLINE_MS = 5000.0


async def retrieve(user: str) -> list[int]:
    """Stands for vector search, filters and feature look-ups: 80 ms, then 128 candidates."""
    await asyncio.sleep(0.080)
    return random.Random(user).sample(range(1, ITEMS), 128)


async def recommend(client: AsyncClient, user: str) -> list[int]:
    """The ten best items for a user."""
    # Both start now. Ranking does not depend on the signal: without it, it takes longer.
    signal = asyncio.create_task(client.prefix(user, deadline_ms=DEADLINE_MS))
    candidates = await retrieve(user)
    try:
        admission = (await signal).admission
    except ClientError as error:
        admission = f"failed: {error}"
    start = time.perf_counter()
    ranking = await client.rank(user, candidates, deadline_ms=DEADLINE_MS, top_k=10)
    took_ms = 1000 * (time.perf_counter() - start)
    print(f"{user}: prefix {admission}, path {ranking.path}, ranked in {took_ms:.1f} ms")
    return [candidates[place] for place in ranking.order or []]


async def main(url: str) -> None:
    async with AsyncClient(url) as client:
        for number in range(3):
            times = list(range(1_700_000_000, 1_700_000_000 + 300 * 60, 60))
            items = random.Random(number).choices(range(1, ITEMS), k=300)
            await client.append(f"user-{number}", items, times)
        for user in ("user-0", "user-1", "user-2", "user-0"):
            best = await recommend(client, user)
            print(f"  best: {best[:3]}")


if __name__ == "__main__":
    with running_server() as url:
        asyncio.run(main(url))
