"""What visits found in the tiers, by requests, tokens and cost, and what they could have found at best."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

USERS = 262_144


class Tier(StrEnum):
    """Where the longest part of a history was when its request came."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    NONE = "none"


class Visit(StrEnum):
    FIRST = "first"  # of the user, as far as remembered
    RETURNING = "returning"


class Use(StrEnum):
    USED = "used"
    LATE = "late"  # it was there, but not where it can be read in time: computed anew


class Kind(NamedTuple):
    """A row of the count."""

    tier: Tier
    visit: Visit
    use: Use


@dataclass(slots=True)
class Sums:
    """Of the visits of one kind, or of all.

    Attributes:
        tokens: history tokens; of one kind, those that were reused.
        cost_ms: of computing them; of one kind, what reusing saved.
    """

    requests: int = 0
    tokens: int = 0
    cost_ms: float = 0.0

    def add(self, tokens: int, cost_ms: float) -> None:
        self.requests += 1
        self.tokens += tokens
        self.cost_ms += cost_ms


class Ceilings(NamedTuple):
    """The ratios of hits that a cache without limits would have had: first visits find nothing."""

    request: float
    token: float
    cost: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Attributes:
    all: visits, their tokens, what computing all of these would cost.
    kinds: by what was found.
    ceilings: None before any visit.
    """

    all: Sums
    kinds: dict[Kind, Sums]
    ceilings: Ceilings | None


@dataclass(slots=True)
class Found:
    """Tokens of a history when its request came, those of them in each tier, and those that were reused."""

    tokens: int
    device: int
    host: int
    disk: int
    reused: int

    @property
    def tier(self) -> Tier:
        """The fastest of those that had most."""
        most = max(self.device, self.host, self.disk)
        if not most:
            return Tier.NONE
        if self.device == most:
            return Tier.DEVICE
        return Tier.HOST if self.host == most else Tier.DISK


@dataclass(slots=True)
class Tally:
    """Counts visits. Not for several threads.

    The last length of the `users` users seen last is remembered: who was forgotten comes for the first time
    again, so that ceilings are never too high.

    Args:
        cost_ms: computing so many new tokens after so many cached ones.
    """

    cost_ms: Callable[[int, int], float]
    users: int = USERS
    _last: OrderedDict[int, int] = field(default_factory=OrderedDict, init=False)
    _all: Sums = field(default_factory=Sums, init=False)
    _best: Sums = field(default_factory=Sums, init=False)
    _kinds: dict[Kind, Sums] = field(default_factory=dict, init=False)

    def visit(self, owner: Hashable, found: Found) -> Kind:
        """One request was served."""
        key, tokens = hash(owner), found.tokens
        before = self._last.pop(key, None)
        self._last[key] = tokens
        if len(self._last) > self.users:
            self._last.popitem(last=False)
        whole = self.cost_ms(tokens, 0)
        self._all.add(tokens, whole)
        if before:
            best = min(before, tokens)
            self._best.add(best, max(whole - self.cost_ms(tokens - best, best), 0.0))
        most = max(found.device, found.host, found.disk)
        reused = min(found.reused, most)
        use = Use.LATE if reused < most else Use.USED
        kind = Kind(found.tier, Visit.FIRST if before is None else Visit.RETURNING, use)
        saved = max(whole - self.cost_ms(tokens - reused, reused), 0.0) if reused else 0.0
        self._kinds.setdefault(kind, Sums()).add(reused, saved)
        return kind

    def forget(self, owner: Hashable) -> None:
        """Nothing is remembered of the user; what was counted stays counted."""
        self._last.pop(hash(owner), None)

    def counts(self) -> Counts:
        whole, best = self._all, self._best
        ceilings = None
        if whole.requests:
            ceilings = Ceilings(
                best.requests / whole.requests,
                best.tokens / whole.tokens if whole.tokens else 0.0,
                best.cost_ms / whole.cost_ms if whole.cost_ms else 0.0,
            )
        return Counts(whole, self._kinds, ceilings)
