"""Whose turn it is, and with what history: a trace of lengths made into events that an engine can rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from relaygr.engine import RankRequest, UserHistory
from relaygr.sim.cache.trace import Ints, Trace, peaks

_FIRST_S, _GAP_S, _LATER_S = 1_700_000_000, 60, 3600
_EVENTS, _CANDIDATES = range(2)  # a stream for each kind of draw


def stretch(trace: Trace, first: int, visits: int) -> Trace:
    """Some requests of a trace as a trace of its own, whose users begin anew."""
    part = slice(first, first + visits)
    known, user = np.unique(trace.user[part], return_inverse=True)
    length, same = trace.length[part], trace.same[part].copy()
    _, opens = np.unique(user, return_index=True)
    same[opens] = 0
    base = int(peaks(user, length, len(known)).sum())
    return replace(
        trace,
        time_ms=trace.time_ms[part],
        user=user.astype(np.int64),
        length=length,
        same=same,
        users=len(known),
        base_tokens=base,
    )


class Visitors:
    """The users of a trace: each visit keeps as many of the events before as the trace says, and adds others.

    A visit that changes or drops events changes all of the history from there on. What items and times are is
    of no matter to random weights; that a change of them is found is.

    Args:
        items: ids are in [1, items].
    """

    def __init__(self, trace: Trace, items: int, candidates: int, seed: int) -> None:
        self._trace, self._items, self._candidates, self._seed = trace, items, candidates, seed
        self._histories: dict[int, UserHistory] = {}

    def request(self, visit: int) -> RankRequest:
        """The request of a visit; visits must be asked for in order, each once."""
        trace = self._trace
        user, length, same = (int(column[visit]) for column in (trace.user, trace.length, trace.same))
        before = self._histories.get(user)
        if before is None or same < len(before):
            history = self._changed(user, visit, length, same)
        else:
            history = before
            if length > len(before):
                items = self._draw(user, visit, length - len(before))
                times = _FIRST_S + _GAP_S * np.arange(len(before), length)
                history = before.append(items, times)
        # A request with less of the history is not the user's state.
        if before is None or len(history) >= len(before) or same < length:
            self._histories[user] = history
        rng = np.random.default_rng((self._seed, _CANDIDATES, visit))
        candidates = rng.integers(1, self._items + 1, self._candidates)
        return RankRequest(history, candidates, _FIRST_S + _GAP_S * length + _LATER_S)

    def _changed(self, user: int, visit: int, length: int, same: int) -> UserHistory:
        """A history that begins as the user's before, and then is another one."""
        before = self._histories.get(user)
        kept = before.items[:same] if before is not None else np.zeros(0, np.int64)
        items = np.concatenate([kept[:length], self._draw(user, visit, max(length - same, 0))])
        return UserHistory(f"u{user}", items, _FIRST_S + _GAP_S * np.arange(length))

    def _draw(self, user: int, visit: int, count: int) -> Ints:
        rng = np.random.default_rng((self._seed, _EVENTS, user, visit))
        return rng.integers(1, self._items + 1, count)
