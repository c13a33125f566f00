"""How long an operation of each policy takes: `python tests/cache/policies/policy_speed.py [entries]`.

Coming and going at a full tier: a visit of somebody, a visit of a newcomer, one leaves, the newcomer comes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

from relaygr.cache.policies import POLICIES, make
from relaygr.cache.policy import Policy, Weight


def full(name: str, entries: int) -> Policy[Any]:
    """A policy with so many entries here, of about a KiB."""
    policy, rng = make(name, entries * 1024), random.Random(0)
    for key in range(entries):
        policy.touch(key)
        policy.insert(key, Weight(rng.randint(512, 1536), 1, rng.random(), 0.0))
    return policy


def operate(policy: Policy[Any], operations: int, newcomer: int) -> None:
    """As many calls of touch, evict and insert, in equal parts but for a little."""
    rng = random.Random(1)
    for step in range(operations // 4):
        policy.touch(rng.randrange(newcomer))
        policy.touch(newcomer + step)
        policy.evict()
        policy.insert(newcomer + step, Weight(rng.randint(512, 1536), 1, rng.random(), 0.0))


def us_per_operation(name: str, entries: int, operations: int) -> float:
    """Time of the processor, the least of three runs: what others do on the machine counts little."""
    policy, runs = full(name, entries), []
    for run in range(3):
        start = process_time()
        operate(policy, operations, entries + run * operations)
        runs.append(process_time() - start)
    return min(runs) / (operations // 4 * 4) * 1e6


def report(entries: int, operations: int, write: Callable[[str], object]) -> None:
    for name in POLICIES:
        write(f"{name:>10}  {us_per_operation(name, entries, operations):6.2f} us an operation\n")


if __name__ == "__main__":
    report(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, 100_000, sys.stdout.write)
