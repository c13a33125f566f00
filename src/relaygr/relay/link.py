"""The link between host memory and the device: who reloads next, and who had better not."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

# Weight of the newest copy in the measured speed.
NEWEST = 0.2
# Smaller copies say more about the cost of a call than about the speed of the link.
MEASURABLE_BYTES = 256 * 1024


class Turn(StrEnum):
    """What became of a reload that was asked for."""

    QUEUED = "queued"
    LATE = "late"  # it would not be there at its deadline
    SLOWER = "slower"  # computing it anew takes less time
    KNOWN = "known"  # this key is queued or running already


class Offer(NamedTuple):
    """An answer and its reason: seconds until it would start, and seconds that the copy takes."""

    turn: Turn
    wait_s: float
    copy_s: float


@dataclass(frozen=True, slots=True, order=True)
class Reload:
    """A reload that waits or runs; the soonest deadline goes first, then who came first."""

    deadline_s: float
    number: int
    key: Hashable
    nbytes: int


class ReloadLink:
    """A queue by deadline in front of one link, of which all copies share the speed.

    Changes: `offer` queues, `next` starts, `done` and `cancel` end; a key is here once.
    Cost: a reload is found by binary search; an estimate adds up the queued ones that go first.
    """

    def __init__(self, slots: int, bytes_per_s: float, cap_bytes_per_s: float = 0.0) -> None:
        """`slots` copies at once; `bytes_per_s` is believed until copies were measured.

        With a cap above 0 no more than that is started a second, however fast the link is.
        Raises ValueError for less than one slot and speeds that are not positive.
        """
        if slots < 1:
            raise ValueError(f"slots: {slots} must be at least 1")
        if not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s: {bytes_per_s} must be positive")
        if cap_bytes_per_s < 0:
            raise ValueError(f"cap_bytes_per_s: {cap_bytes_per_s} must not be negative")
        self.slots, self.cap_bytes_per_s = slots, cap_bytes_per_s
        self.measured_bytes_per_s = bytes_per_s
        self._queue: list[Reload] = []
        self._queued: dict[Hashable, Reload] = {}
        self._running: dict[Hashable, Reload] = {}
        self._numbers = 0
        self._busy_until_s = float("-inf")  # when what runs now should be through
        self._paced_until_s = float("-inf")  # before that the cap lets nothing start
        self.skipped = dict.fromkeys((Turn.LATE, Turn.SLOWER), 0)

    @property
    def speed(self) -> float:
        """Bytes a second that are counted on."""
        cap = self.cap_bytes_per_s
        return min(self.measured_bytes_per_s, cap) if cap else self.measured_bytes_per_s

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def estimate(self, nbytes: int, now_s: float, deadline_s: float) -> tuple[float, float]:
        """(seconds until such a reload would start, seconds that it takes)."""
        ahead = bisect_right(self._queue, deadline_s, key=lambda one: one.deadline_s)
        waiting = sum(one.nbytes for one in self._queue[:ahead])
        begun = max(self._busy_until_s, self._paced_until_s, now_s) - now_s
        return begun + waiting / self.speed, nbytes / self.speed

    def offer(
        self, key: Hashable, nbytes: int, now_s: float, deadline_s: float, recompute_s: float = float("inf")
    ) -> Offer:
        """Queue a reload unless it would be late, or slower than computing the prefix in `recompute_s`."""
        wait, copy = self.estimate(nbytes, now_s, deadline_s)
        if key in self._queued or key in self._running:
            return Offer(Turn.KNOWN, wait, copy)
        if now_s + wait + copy > deadline_s:
            return self._skip(Turn.LATE, wait, copy)
        if recompute_s < wait + copy:
            return self._skip(Turn.SLOWER, wait, copy)
        self._numbers += 1
        reload = Reload(deadline_s, self._numbers, key, nbytes)
        insort(self._queue, reload)
        self._queued[key] = reload
        return Offer(Turn.QUEUED, wait, copy)

    def next(self, now_s: float) -> tuple[Reload | None, tuple[Reload, ...]]:
        """The reload to start now, if a slot and the cap allow one; and those that are given up.

        Given up are those that could not meet their deadline any more even if they started at once; their
        keys have to be computed.
        """
        late: list[Reload] = []
        start: Reload | None = None
        while self._queue and start is None:
            first = self._queue[0]
            behind = max(self._busy_until_s, now_s) - now_s
            if now_s + behind + first.nbytes / self.speed > first.deadline_s:
                late.append(first)
                self.skipped[Turn.LATE] += 1
            elif len(self._running) < self.slots and self._paced_until_s <= now_s:
                start = first
            else:
                break
            del self._queue[0]
            del self._queued[first.key]
        if start is not None:
            self._running[start.key] = start
            self._busy_until_s = max(self._busy_until_s, now_s) + start.nbytes / self.speed
            if self.cap_bytes_per_s:
                self._paced_until_s = now_s + start.nbytes / self.cap_bytes_per_s
        return start, tuple(late)

    def done(self, key: Hashable, now_s: float, seconds: float = 0.0) -> bool:
        """A running reload has ended, well or not; `seconds` of copying, if it was, feed the measured speed.

        False for a key that is not running, which changes nothing.
        """
        reload = self._running.pop(key, None)
        if reload is None:
            return False
        if seconds > 0:
            self.measure(reload.nbytes, seconds)
        left = sum(one.nbytes for one in self._running.values()) / self.speed
        self._busy_until_s = min(self._busy_until_s, now_s + left)
        return True

    def cancel(self, key: Hashable) -> bool:
        """Take a queued reload out; False if it is not queued. A running one ends with `done`."""
        reload = self._queued.pop(key, None)
        if reload is None:
            return False
        self._queue.remove(reload)
        return True

    def measure(self, nbytes: int, seconds: float) -> None:
        """What a copy of `nbytes` took; small ones say nothing."""
        if nbytes >= MEASURABLE_BYTES and seconds > 0:
            self.measured_bytes_per_s += NEWEST * (nbytes / seconds - self.measured_bytes_per_s)

    def _skip(self, turn: Turn, wait_s: float, copy_s: float) -> Offer:
        self.skipped[turn] += 1
        return Offer(turn, wait_s, copy_s)
