"""What a calibration times: made-up users of several lengths, each met cold, then warm, then longer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.engine.columns import Int64
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import RankRequest
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig

TENANT = "relaygr.calibration"
_START_S = 1_700_000_000
_NEW_EVENTS, _CHUNK_EVENTS = 64, 256
_FEW, _SOME, _MANY = 32, 128, 512  # candidates
_LEAST_EVENTS = 8


@dataclass(frozen=True, slots=True)
class Ladder:
    """Requests of one user that build on one another, the first without anything cached.

    Attributes:
        events: of the first request.
        requests: in order; one without candidates is a step of a pre-inference.
    """

    user: str
    events: int
    requests: tuple[RankRequest, ...]


def ladders(config: AnyConfig, max_candidates: int, dense: bool) -> list[list[Ladder]]:
    """Ladders by length, shortest first: each length is a quarter of the next, or half of it if `dense`.

    Every length is ranked cold; all but the longest are also pre-inferred cold. Histories never get longer
    than the model's window, so that nothing falls out of it.
    """
    room = config.max_history // 8
    more, chunk = min(_NEW_EVENTS, room), min(_CHUNK_EVENTS, room)
    longest = config.max_history - 2 * more - 2 * chunk
    limit = min(max_candidates, config.max_num_candidates)
    few, some, many = (min(count, limit) for count in (_FEW, _SOME, _MANY))
    found = []
    for events in _lengths(longest, dense):
        ranked = Climb(config, f"ranked-{events}", events)
        ladder = [ranked.rank(some), ranked.rank(few), ranked.rank(many)]
        if room:
            ladder += [ranked.longer(more).rank(some), ranked.longer(chunk).rank(0)]
            ladder += [ranked.longer(more).rank(few), ranked.longer(chunk).rank(0)]
        rung = [Ladder(ranked.user, events, tuple(ladder))]
        if events < longest:
            inferred = Climb(config, f"inferred-{events}", events)
            rung.append(Ladder(inferred.user, events, (inferred.rank(0), inferred.rank(many))))
        found.append(rung)
    return found


def _lengths(longest: int, dense: bool) -> list[int]:
    step, count = (2, 6) if dense else (4, 3)
    found = {max(longest // step**power, min(_LEAST_EVENTS, longest)) for power in range(count)}
    return sorted(found)


class Climb:
    """Requests of a user whose history grows; ids that every model knows. `seed` defaults to `events`."""

    def __init__(self, config: AnyConfig, user: str, events: int, seed: int | None = None) -> None:
        self.user = user
        self._config = config
        self._random = np.random.default_rng(events if seed is None else seed)
        self._time_s = _START_S
        tables = config.slot_tables if isinstance(config, HstuConfig) else ()
        slots = [table.first for table in tables] or [0] * len(config.contextual)
        self._history = UserHistory(user, *self._events(events), tenant_name=TENANT, contextual=slots)

    def longer(self, events: int) -> Climb:
        self._history = self._history.append(*self._events(events))
        return self

    def rank(self, candidates: int) -> RankRequest:
        return RankRequest(self._history, self._items(candidates))

    def _events(self, count: int) -> tuple[Int64, Int64, Int64]:
        times = self._time_s + np.cumsum(self._random.integers(1, 1200, count))
        self._time_s = int(times[-1])
        table = self._config.actions if isinstance(self._config, HstuConfig) else None
        return self._items(count), times, np.full(count, 1 if table is None else table.first)

    def _items(self, count: int) -> Int64:
        table = self._config.items if isinstance(self._config, HstuConfig) else None
        low, high = (1, 1 << 40) if table is None else (table.first, table.rows)
        return self._random.integers(low, high, count)
