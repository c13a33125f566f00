"""The users of a relay load: their events as JSON, made once and shared by users that differ in name only."""

from __future__ import annotations

import random

from relaygr.bench.relay_wire import post

_FIRST_TIME_S = 1_700_000_000
_GAP_S = 60
# So many different histories and lists of candidates: with one only, the rows of the item table that a pass
# reads would never leave the processor's caches.
_KINDS = 16


class People:
    """Histories of `most` events, of which a user has the first so many; and lists of candidates.

    A name is of the form `RUN-NUMBER`: another run's users are new to the server, with the same events.
    """

    def __init__(self, most: int, candidates: int, items: int, seed: int) -> None:
        """Ids from 1 to `items`."""
        rng = random.Random(seed)
        ids = range(1, items + 1)
        self._items = [[str(item) for item in rng.choices(ids, k=most)] for _ in range(_KINDS)]
        self._times = [str(_FIRST_TIME_S + _GAP_S * place) for place in range(most)]
        self._wanted = [",".join(map(str, rng.choices(ids, k=candidates))) for _ in range(_KINDS)]
        self._count = candidates
        self._columns: dict[tuple[int, int, int], bytes] = {}

    @staticmethod
    def name(run: str, user: int) -> str:
        return f"{run}-{user}"

    def stored(self, name: str, user: int, tokens: int) -> bytes:
        """The request that stores the user's first `tokens` events."""
        return self.events(name, user, 0, tokens)

    def events(self, name: str, user: int, first: int, end: int) -> bytes:
        """The request that appends the user's events from number `first` to `end`."""
        key = (user % _KINDS, first, end)
        columns = self._columns.get(key)
        if columns is None:
            items, times = self._items[key[0]][first:end], self._times[first:end]
            columns = f'"items":[{",".join(items)}],"timestamps":[{",".join(times)}]}}'.encode()
            if len(self._columns) < 4 * _KINDS:  # lengths that many users share come first
                self._columns[key] = columns
        return post("/v1/events", f'{{"user":"{name}",'.encode() + columns)

    def prefix(self, name: str) -> bytes:
        """The request that announces the user's ranking."""
        return post("/v1/prefix", f'{{"user":"{name}","candidates":{self._count}}}'.encode())

    def rank(self, name: str, number: int, deadline_ms: float, budget_ms: float | None) -> bytes:
        """The request that ranks list `number` for the user."""
        budget = "" if budget_ms is None else f',"budget_ms":{budget_ms:.3f}'
        wanted = self._wanted[number % _KINDS]
        body = f'{{"user":"{name}","candidates":[{wanted}],"deadline_ms":{deadline_ms:.3f}{budget}}}'
        return post("/v1/rank", body.encode())
