"""Whose turn it is to compute, where rankings and generations share the processor.

Two executors whose threads fill the same cores get in each other's way: an OpenMP loop waits for its slowest
thread. There both take turns, a batch or a step long. Where each has cores of its own they run side by side.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from relaygr.core.clock import Clock, MonotonicClock


def turns_for(threads: int, cores: int, yield_s: float) -> Turnstile | None:
    """What two executors of `threads` compute threads each share; None if there are cores enough for both."""
    return Turnstile(yield_s) if 2 * threads > cores else None


class Turnstile:
    """Lets one through at a time: rankings before everything else.

    A ranking waits for at most one turn of something else. Something else that has waited `yield_s` goes
    before one ranking. Among equals, first come first served. Waiting takes no processor time.
    """

    def __init__(self, yield_s: float = 0.05, clock: Clock | None = None) -> None:
        self._yield_s, self._clock = yield_s, clock or MonotonicClock()
        self._change = threading.Condition()
        self._first: deque[object] = deque()
        self._others: deque[object] = deque()
        self._since: dict[object, float] = {}  # when each of the others came
        self._busy = self._gave_way = False

    @contextmanager
    def turn(self, ranking: bool) -> Iterator[None]:
        """Wait for a turn, and have it until the end of the block. Not to be nested."""
        self._take(object(), ranking)
        try:
            yield
        finally:
            with self._change:
                self._busy = False
                self._change.notify_all()

    def waiting(self) -> tuple[int, int]:
        """(rankings, others) that wait now."""
        with self._change:
            return len(self._first), len(self._others)

    def _take(self, me: object, ranking: bool) -> None:
        with self._change:
            line = self._first if ranking else self._others
            line.append(me)
            if not ranking:
                self._since[me] = self._clock.now_s()
            try:
                self._change.wait_for(lambda: not self._busy and self._next() is me)
                # Two of the others in a row would let a ranking wait for both.
                self._gave_way = not ranking
                self._busy = True
            finally:
                line.remove(me)
                self._since.pop(me, None)
                self._change.notify_all()

    def _next(self) -> object | None:
        if not self._first:
            return self._others[0] if self._others else None
        if self._others and not self._gave_way:
            waited_s = self._clock.now_s() - self._since[self._others[0]]
            if waited_s >= self._yield_s:
                return self._others[0]
        return self._first[0]
