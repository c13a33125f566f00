"""A day of users who come in sessions with histories that grow, and the cost of computing them."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from relaygr.cache.policies import PolicySettings
from relaygr.cache.policy import Weight
from relaygr.cache.shadow import Trial

DAY_S = 86_400.0
_LONGEST = 8192


class Request(NamedTuple):
    at_s: float
    user: str
    tokens: int


class Day(NamedTuple):
    """`footprint`: tokens of all users at the end of it, those who come once for `scan` left out."""

    requests: tuple[Request, ...]
    footprint: int


@cache
def weigh(tokens: int) -> Weight:
    """A byte a token; a unit of time a token, and another for 4096 others that it attends to."""
    return Weight(tokens, tokens, tokens + tokens * (tokens + 1) / 8192, 0.0)


@cache
def day(seed: int, users: int, scan: bool = False) -> Day:
    """Three sessions a user and day on average, six requests a session, about a minute apart."""
    rng = np.random.default_rng(seed)
    rates = rng.lognormal(0.0, 1.0, users)
    rates *= 3 / rates.mean()
    lengths = _first_lengths(rng, users)
    times: list[tuple[float, int]] = []
    for user in range(users):
        for at_s in rng.uniform(0, DAY_S, rng.poisson(rates[user])):
            gaps = rng.exponential(65.0, int(rng.geometric(1 / 6)) - 1)
            times += [(t, user) for t in [at_s, *(at_s + gaps.cumsum())] if t < DAY_S]
    requests, seen = [], set[int]()
    for at_s, user in sorted(times):
        if user in seen:
            lengths[user] = min(_LONGEST, lengths[user] + int(rng.integers(4, 20)))
        seen.add(user)
        requests.append(Request(float(at_s), f"u{user}", lengths[user]))
    footprint = sum(lengths[user] for user in seen)
    if scan:
        once = int(0.3 * len(requests))
        starts, sizes = rng.uniform(0, DAY_S, once), _first_lengths(rng, once)
        requests += [Request(float(starts[i]), f"once{i}", sizes[i]) for i in range(once)]
        requests.sort()
    return Day(tuple(requests), footprint)


@cache
def cost_hit(name: str, seed: int, users: int, scan: bool, share: float) -> float:
    """Of a whole tier, after the first third of the day; its capacity is a share of the footprint."""
    requests, footprint = day(seed, users, scan)
    trial: Trial[str] = Trial(name, int(share * footprint), weigh, PolicySettings())
    whole = 0.0
    for request in requests:
        if request.at_s < DAY_S / 3:
            trial.saved_ms = 0.0
        else:
            whole += weigh(request.tokens).rec_ms
        trial.visit(request.user, weigh(request.tokens))
    return trial.saved_ms / whole


def _first_lengths(rng: np.random.Generator, n: int) -> list[int]:
    return [int(length) for length in np.clip(rng.lognormal(math.log(1200), 0.9, n), 1, _LONGEST)]
