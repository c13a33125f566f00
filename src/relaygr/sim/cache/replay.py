"""Serve a trace from one tier of whole users, and count what it held when it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from relaygr.cache.policy import Policy, Weight
from relaygr.core.errors import ConfigError
from relaygr.sim.cache.hits import Costs, Split, split
from relaygr.sim.cache.trace import Trace


class Moves(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier moved after the warm-up, in bytes of tokens.

    Attributes:
        loaded_bytes: read by hits.
        stored_bytes: written because they were new.
        dropped_bytes: lost by eviction.
        evictions: times that an entry left, or a part of it.
        refused: requests whose history did not fit.
    """

    loaded_bytes: int
    stored_bytes: int
    dropped_bytes: int
    evictions: int
    refused: int


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trace; `users_end` had an entry at its end."""

    hits: Split
    moves: Moves
    users_end: int


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A trace made ready for many replays; columns of requests as lists, which loops read faster.

    Attributes:
        size: [requests] bytes of the whole history, in whole pages.
        cost: [requests] of computing it.
    """

    trace: Trace
    costs: Costs
    token_bytes: int
    page_tokens: int
    user: Sequence[int]
    length: Sequence[int]
    same: Sequence[int]
    size: Sequence[int]
    cost: Sequence[float]


def prepare(trace: Trace, costs: Costs, token_bytes: int = 1, page_tokens: int = 1) -> Course:
    """Make a trace ready; ConfigError for sizes out of range."""
    for name, value in (("token_bytes", token_bytes), ("page_tokens", page_tokens)):
        if not 1 <= value <= 2**30:
            raise ConfigError(f"replay.{name}", f"{value} must be in [1, {2**30}]")
    tokens = trace.length.astype(np.float64)
    pages = -(-trace.length // page_tokens)
    return Course(
        trace=trace,
        costs=costs,
        token_bytes=token_bytes,
        page_tokens=page_tokens,
        user=trace.user.tolist(),
        length=trace.length.tolist(),
        same=trace.same.tolist(),
        size=(pages * page_tokens * token_bytes).tolist(),
        cost=costs.new(tokens, np.zeros_like(tokens)).tolist(),
    )


def replay(course: Course, policy: Policy[int], capacity_bytes: int) -> Replay:
    """Serve all requests in order from an empty tier of so many bytes.

    Every request leaves its whole history in the tier, if need be in the place of others; a history that is
    the beginning of what is there leaves that as it is. The policy must be new, and of this capacity.
    """
    tier = _Tier(course, policy, capacity_bytes)
    trace = course.trace
    warm = tier.run(0, trace.warmup)
    tier.clear()
    reused = np.array(warm + tier.run(trace.warmup, len(trace)), np.int64)
    return Replay(
        hits=split(trace, reused, course.costs, trace.warmup),
        moves=Moves(
            loaded_bytes=int(reused[trace.warmup :].sum()) * course.token_bytes,
            stored_bytes=tier.stored * course.token_bytes,
            dropped_bytes=tier.dropped * course.token_bytes,
            evictions=tier.evictions,
            refused=tier.refused,
        ),
        users_end=len(tier.held),
    )


class _Tier:
    """The entries of one tier by user, and counts in tokens of what was moved."""

    def __init__(self, course: Course, policy: Policy[int], capacity_bytes: int) -> None:
        self._course = course
        self._policy = policy
        self._free = capacity_bytes
        self._capacity = capacity_bytes
        self.held: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self.clear()

    def clear(self) -> None:
        """Count from here on."""
        self.stored = self.dropped = self.evictions = self.refused = 0

    def run(self, begin: int, end: int) -> list[int]:
        """Serve these requests; answers how many tokens each reused."""
        course, held, touch = self._course, self.held, self._policy.touch
        part = slice(begin, end)
        columns = (course.user[part], course.length[part], course.same[part], course.size[part])
        reused = []
        for user, length, same, size, cost in zip(*columns, course.cost[part], strict=True):
            touch(user)
            here = held.get(user)
            if here is None:
                known = 0
                self._come(user, length, size, cost)
            else:
                known = min(here, same, length)
                # What is there stays if all that was asked for is the beginning of it.
                if known < length and self._grow(user, length, size, cost):
                    self.stored += length - known
            reused.append(known)
        return reused

    def _come(self, user: int, length: int, size: int, cost: float) -> None:
        if size > self._capacity or not self._make_room(size):
            self.refused += 1
            return
        self._put(user, length, size, cost)
        self.stored += length

    def _grow(self, user: int, length: int, size: int, cost: float) -> bool:
        """Replace what is there; if that does not fit, nothing of it stays."""
        more = size - self._bytes[user]
        if more > self._free:
            # Not in its own place.
            self._policy.park(user)
            enough = size <= self._capacity and self._make_room(more)
            self._policy.unpark(user)
            if not enough:
                self.refused += 1
                self.dropped += self.held.pop(user)
                self._free += self._bytes.pop(user)
                self._policy.remove(user)
                return False
        self._put(user, length, size, cost)
        return True

    def _put(self, user: int, length: int, size: int, cost: float) -> None:
        self._free -= size - self._bytes.get(user, 0)
        self.held[user], self._bytes[user] = length, size
        self._policy.insert(user, Weight(size, length, cost, self._course.costs.t_load * length))

    def _make_room(self, size: int) -> bool:
        """Evict until so many bytes are free; False if there is nothing left to evict."""
        course = self._course
        while self._free < size:
            victim = self._policy.evict()
            if victim is None:
                return False
            self.evictions += 1
            kept, keep = victim.key, victim.keep_tokens
            before, bytes_before = self.held.pop(kept), self._bytes.pop(kept)
            after = -(-keep // course.page_tokens) * course.page_tokens * course.token_bytes
            self.dropped += before - keep
            self._free += bytes_before - after
            if keep:
                self.held[kept], self._bytes[kept] = keep, after
        return True
