"""The users of a soak, and what their server must know of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

_FIRST_TIME_S = 1_700_000_000
_GAP_S = 30
_ITEMS = 40_000


class EventsBody(msgspec.Struct, frozen=True):
    user: str
    items: Sequence[int]
    timestamps: Sequence[int]
    key: str


class History(msgspec.Struct, frozen=True):
    items: Sequence[int]
    timestamps: Sequence[int]


class RankBody(msgspec.Struct, frozen=True, omit_defaults=True):
    user: str
    candidates: list[int]
    history: History | None = None


@dataclass(slots=True)
class Person:
    """One user; only one request of theirs is on its way at a time, so that the answers are known.

    Attributes:
        items, times: acknowledged events. The lists only grow; after a deletion there are new ones.
    """

    name: str
    items: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    last_s: int = _FIRST_TIME_S
    keys: int = 0

    def more(self, count: int, rng: random.Random) -> EventsBody:
        """Events to append; they count once `stored` is told."""
        first = self.last_s + _GAP_S
        self.last_s += count * _GAP_S
        self.keys += 1
        times = list(range(first, first + count * _GAP_S, _GAP_S))
        return EventsBody(self.name, ids(count, rng), times, f"{self.name}-{self.keys}")

    def stored(self, body: EventsBody) -> None:
        self.items.extend(body.items)
        self.times.extend(body.timestamps)

    def deleted(self) -> None:
        self.items, self.times = [], []


@dataclass(frozen=True, slots=True)
class Sample:
    """A ranking to score again: what was asked, and what was answered.

    The user had the first `events` of `items` and `times`; the scores are [m, tasks].
    """

    user: str
    items: list[int]
    times: list[int]
    events: int
    candidates: list[int]
    scores: list[list[float]]
    model: str
    path: str
    served_tokens: int


def ids(count: int, rng: random.Random) -> list[int]:
    return rng.choices(range(1, _ITEMS), k=count)
