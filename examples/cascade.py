"""A recommendation request: retrieval runs, and meanwhile the user's history is encoded.

Run: python examples/cascade.py
"""

from __future__ import annotations

import asyncio
import random

from server import running_server

from relaygr.client import AsyncClient, Cascade

ITEMS = 50_000


async def retrieve(user: str, request: None) -> list[int]:
    """Stands for vector search, filters and feature look-ups: 80 ms, then 128 candidates."""
    await asyncio.sleep(0.080)
    return random.Random(user).sample(range(1, ITEMS), 128)


async def main(url: str) -> None:
    async with AsyncClient(url) as client:
        for number in range(3):
            times = list(range(1_700_000_000, 1_700_000_000 + 300 * 60, 60))
            items = random.Random(number).choices(range(1, ITEMS), k=300)
            await client.append(f"user-{number}", items, times)
        cascade = Cascade(client, retrieve=retrieve, candidates=128, deadline_ms=5000)
        for user in ("user-0", "user-1", "user-2", "user-0"):
            best = await cascade.recommend(user, top_k=3)
            assert best.ranking is not None
            print(f"{user}: prefix {best.signal.admission}, path {best.ranking.path}, best: {best.items}")
            print(f"  lead {best.timings.lead_ms:.1f} ms, ranked in {best.timings.rank_ms:.1f} ms")


if __name__ == "__main__":
    # So short a history needs no help: by default its signals are refused.
    with running_server("--set", "trigger.admit_all=true") as url:
        asyncio.run(main(url))
