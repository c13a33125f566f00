"""Who comes back after few others stays, whenever its last visit was."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from relaygr.cache.policies.segments import Segment, Segmented
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policy import K, Victim


class Lirs(Segmented[K]):
    """Almost all of the capacity is for *low* entries: between their last two visits came few others.

    The others, *high* ones, leave first in, first out. The stack holds the last visits of all low entries
    and of all, here or not, that were visited after the oldest of them: a high one visited while it is there
    becomes low, and the low one at the bottom high.
    Source: Jiang and Zhang 2002, "LIRS: an efficient low inter-reference recency set replacement policy".
    """

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._low: Segment[K] = Segment()
        self._high: Segment[K] = Segment()
        self._stack: OrderedDict[K, None] = OrderedDict()  # last visit last
        self._gone: OrderedDict[K, bool] = OrderedDict()  # in the stack but not here; visited since?
        self._ghost_entries = settings.ghost_entries
        self._low_share = 1 - settings.resident_share

    @property
    def _low_bytes(self) -> float:
        return self._low_share * self.capacity_bytes

    def touch(self, key: K) -> None:
        segment = self._where.get(key)
        if segment is self._low:
            self._low.renew(key)
            self._to_top(key)
            self._prune()
        elif segment is None:
            if key in self._gone:
                self._gone[key] = True
                self._gone.move_to_end(key)
                self._to_top(key)
        elif key in self._stack:
            self._to_top(key)
            self._move(key, self._low)
            self._shrink()
        else:
            self._to_top(key)
            self._high.renew(key)

    def evict(self) -> Victim[K] | None:
        key = self._high.first()
        if key is None:
            key = self._low.first()
        if key is None:
            return None
        self.remove(key)
        return Victim(key)

    def remembered(self) -> Iterator[K]:
        return iter(self._gone)

    def forget(self, key: K) -> None:
        super().forget(key)
        self._gone.pop(key, None)
        self._stack.pop(key, None)
        self._prune()

    def _come(self, key: K, nbytes: int) -> None:
        returns = self._gone.pop(key, False)
        self._to_top(key)
        low = returns or self._low.nbytes + nbytes <= self._low_bytes
        self._put(key, nbytes, self._low if low else self._high)
        self._shrink()

    def _left(self, key: K, nbytes: int, segment: Segment[K]) -> None:
        if key in self._stack:
            self._gone[key] = False
            if len(self._gone) > self._ghost_entries:
                del self._stack[self._gone.popitem(last=False)[0]]
        self._prune()

    def _to_top(self, key: K) -> None:
        self._stack[key] = None
        self._stack.move_to_end(key)

    def _shrink(self) -> None:
        """Low entries within their share: the bottom one becomes high, with its last visit forgotten."""
        self._prune()
        while self._low.nbytes > self._low_bytes:
            bottom = next(iter(self._stack))
            self._move(bottom, self._high)
            del self._stack[bottom]
            self._prune()

    def _prune(self) -> None:
        """The bottom of the stack is a low entry."""
        while self._stack:
            bottom = next(iter(self._stack))
            if self._where.get(bottom) is self._low:
                return
            del self._stack[bottom]
            self._gone.pop(bottom, None)
