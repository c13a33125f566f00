"""Virtual time: what happens next, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

Action = Callable[..., None]


class Timeline:
    """Events in order of time, and of booking where times are equal; nothing else moves the clock.

    What was booked cannot be taken back: whoever may change their mind looks, when called, whether it still
    holds.
    """

    __slots__ = ("_booked", "_heap", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._booked = count()

    def at(self, time_s: float, action: Action, *args: Any) -> None:
        """Call `action(*args)` at `time_s`; now, but after what is going on, if that is past."""
        due_s = time_s if time_s > self.now_s else self.now_s
        heapq.heappush(self._heap, (due_s, next(self._booked), action, args))

    def after(self, delay_s: float, action: Action, *args: Any) -> None:
        self.at(self.now_s + delay_s, action, *args)

    def step(self, events: int = 1) -> int:
        """The next `events` events; returns how many there were."""
        heap, pop, done = self._heap, heapq.heappop, 0
        while heap and done < events:
            self.now_s, _, action, args = pop(heap)
            action(*args)
            done += 1
        return done

    def run(self) -> int:
        """Everything there is; returns the number of events."""
        done = 0
        while more := self.step(1 << 20):
            done += more
        return done
