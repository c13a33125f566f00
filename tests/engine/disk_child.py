"""A process that writes to a disk tier until somebody kills it, and says who was forgotten."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from disk_state import USERS, DiskState


def main(folder: str, seed: int, lives: list[int]) -> None:
    rng = random.Random(seed)
    state = DiskState(Path(folder), disk_bytes=2_000_000)
    state.lane.pump()  # what the beginning asked for: nobody else will
    state.lane = ThreadPoolExecutor(1)  # type: ignore[assignment]
    state.tier._lane = state.lane
    state.lives = dict(zip(USERS, lives, strict=True))
    state.versions = seed * 10_000
    while True:
        user = rng.choice(USERS)
        state.put(user, rng.randint(1, 40))
        for _ in range(rng.randint(1, 60)):
            if state.tier.due(0.0):
                state.tier.step(rng.choice([1, 1 << 20]), 0.0)
        if rng.random() < 0.2:
            print("forgetting", user, flush=True)
            state.books.forget("t", user)  # type: ignore[arg-type]
            state.tier.forget(("t", user))()  # type: ignore[arg-type]
            state.lives[user] += 1
            print("forgotten", user, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(life) for life in sys.argv[3].split(",")])
