"""One live prefix: its state, who still waits for it, and why it will have left."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class State(StrEnum):
    """Of a live prefix; a PINNED one is read by at least one pass."""

    RESERVED = "reserved"
    PRODUCING = "producing"
    RELOADING = "reloading"
    READY = "ready"
    PINNED = "pinned"


class Cause(StrEnum):
    """Why a prefix is live no longer.

    CONSUMED was read; nothing else did any good. ORPHAN: its time was over and no ranking had come.
    EXPIRED_UNCONSUMED is an orphan whose ranking came later after all (`came_late`). LATE: its rankings were
    over before it was ready. CANCELLED: it failed, its requests were withdrawn, or it was forgotten.
    """

    CONSUMED = "consumed"
    EXPIRED_UNCONSUMED = "expired_unconsumed"
    ORPHAN = "orphan"
    LATE = "late"
    CANCELLED = "cancelled"


class Left(msgspec.Struct, Generic[K], frozen=True):
    """A prefix that left the book; if it was READY or PINNED, its bytes are plain cache from now on."""

    key: K
    generation: int
    nbytes: int
    state: State
    cause: Cause


class Hold(msgspec.Struct, eq=False):
    """What the book knows of a live prefix.

    Attributes:
        claims: when each request that may still rank stops counting, a heap.
        fate: the cause if it left now.
        forgotten: its user was deleted or its build retired.
    """

    generation: int
    nbytes: int
    state: State = State.RESERVED
    pins: int = 0
    claims: list[float] = []
    fate: Cause = Cause.ORPHAN
    forgotten: bool = False

    @property
    def readable(self) -> bool:
        return self.state is State.READY or self.state is State.PINNED

    @property
    def in_use(self) -> bool:
        """Somebody waits for it, writes it or reads it."""
        return bool(self.claims) or (self.state is not State.RESERVED and self.state is not State.READY)

    def add_claim(self, end_s: float) -> None:
        heapq.heappush(self.claims, end_s)
        self.expect(Cause.ORPHAN)

    def take_claim(self) -> None:
        """The first to end: those that remain end no sooner than those of the requests still on their way."""
        if self.claims:
            heapq.heappop(self.claims)

    def prune(self, now_s: float) -> None:
        """Claims that have ended no longer count."""
        while self.claims and self.claims[0] <= now_s:
            heapq.heappop(self.claims)
            self.expect(Cause.ORPHAN)

    def expect(self, fate: Cause) -> None:
        """What was read once stays consumed."""
        if self.fate is not Cause.CONSUMED:
            self.fate = fate
