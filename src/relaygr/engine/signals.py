"""Signals whose rankings have not come yet, oldest first for each user."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, replace

from relaygr.engine.tiers import Readable

Owner = tuple[str, str]

USERS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Signal:
    """A prefix signal that was decided on: when it came, what was said of it, and what the tiers had then."""

    at_s: float
    at_risk: bool
    admitted: bool
    found: Readable


class Signals:
    """The newest few of each user, of the `users_max` users that were signalled last. Not thread-safe."""

    def __init__(self, of_user: int, users_max: int = USERS_MAX) -> None:
        self._of_user, self._limit = of_user, users_max
        self._waiting: OrderedDict[Owner, deque[Signal]] = OrderedDict()

    def add(self, owner: Owner, signal: Signal) -> None:
        waiting = self._waiting.setdefault(owner, deque(maxlen=self._of_user))
        waiting.append(signal)
        self._waiting.move_to_end(owner)
        if len(self._waiting) > self._limit:
            self._waiting.popitem(last=False)

    def withdraw(self, owner: Owner) -> None:
        """The newest one was not admitted after all."""
        waiting = self._waiting.get(owner)
        if waiting:
            waiting[-1] = replace(waiting[-1], admitted=False)

    def take(self, owner: Owner, since_s: float) -> tuple[Signal, ...]:
        """Those that a ranking which came now ends, its own last; empty if none announced it.

        Its own is the oldest from `since_s` on, since rankings come in the order of their signals. The
        rankings of older ones are lost; only if there is no other, one may have come late.
        """
        waiting = self._waiting.get(owner)
        if not waiting:
            return ()
        ended = [waiting.popleft()]
        while ended[-1].at_s < since_s and waiting:
            ended.append(waiting.popleft())
        if not waiting:
            del self._waiting[owner]
        return tuple(ended)

    def forget(self, owner: Owner) -> None:
        self._waiting.pop(owner, None)
