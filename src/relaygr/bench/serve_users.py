"""The users of a load: stored before it, drawn during it, removed after it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from relaygr.bench.serve_spec import LoadSpec

_FIRST_TIME_S = 1_700_000_000
_GAP_S = 60
# Events of one append: well below the server's limit on bodies.
_APPEND_EVENTS = 4096


class EventsBody(msgspec.Struct, frozen=True):
    user: str
    items: list[int]
    timestamps: list[int]


class RankBody(msgspec.Struct, frozen=True):
    user: str
    candidates: list[int]
    deadline_ms: float


class PrefixBody(msgspec.Struct, frozen=True):
    user: str


class Crowd:
    """Users with names of their own in every run, so that no run meets what another left behind."""

    def __init__(self, spec: LoadSpec) -> None:
        self._spec, self._rng = spec, random.Random(spec.seed)
        run = secrets.token_hex(4)
        self.names = [f"bench-{run}-{number}" for number in range(spec.users)]
        self._weights = list(accumulate((place + 1) ** -spec.skew for place in range(spec.users)))
        self._last_s = [_FIRST_TIME_S] * spec.users

    def draw(self) -> int:
        """A user's number, by popularity."""
        return self._rng.choices(range(len(self.names)), cum_weights=self._weights)[0]

    def stored(self, user: int) -> Iterator[bytes]:
        """The bodies that store a user's history."""
        left = self._spec.history
        while left > 0:
            yield self.events(user, min(left, _APPEND_EVENTS))
            left -= _APPEND_EVENTS

    def events(self, user: int, count: int) -> bytes:
        """The body that appends `count` new events, a minute apart."""
        first = self._last_s[user] + _GAP_S
        self._last_s[user] += count * _GAP_S
        times = list(range(first, first + count * _GAP_S, _GAP_S))
        return msgspec.json.encode(EventsBody(self.names[user], self._ids(count), times))

    def rank(self, user: int) -> bytes:
        spec = self._spec
        body = RankBody(self.names[user], self._ids(spec.candidates), spec.deadline_ms)
        return msgspec.json.encode(body)

    def prefix(self, user: int) -> bytes:
        return msgspec.json.encode(PrefixBody(self.names[user]))

    def _ids(self, count: int) -> list[int]:
        return self._rng.choices(range(1, self._spec.items + 1), k=count)
