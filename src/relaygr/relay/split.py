"""How live prefixes and states kept for reuse divide the device, by what a miss costs on each side.

Both lie in the same pages; the bound of the live ones is what moves, and a lower one takes effect when enough
of them has been used.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_SHARE = 1 / 32  # of the device, moved at once
_INTERVAL_S = 5.0
_LEAST = 8  # misses in an interval, on both sides together, that say anything
_CLEARLY = 1.25  # times as dear as the other side
_LEAST_SHARE, _MOST_SHARE = 1 / 16, 15 / 16


@dataclass(slots=True)
class Misses:
    """Of one side in the present interval."""

    count: int = 0
    cost_ms: float = 0.0
    nbytes: int = 0

    def add(self, cost_ms: float, nbytes: int) -> None:
        self.count += 1
        self.cost_ms += cost_ms
        self.nbytes += nbytes


class Split:
    """Decides on the bound of live prefixes once an interval; the static one is where it starts and returns.

    A step of memory for live prefixes would have admitted some of the signals that were refused for want of
    it: as many as fit in it, one after the other, each for the life of a prefix. The same step for reuse
    would have kept the states that left last, see `cache.margin`. What saves clearly more time gets it.
    In an interval with too few misses to tell, the bound goes a step back towards the static one.
    """

    def __init__(self, device_bytes: int, static_bytes: int) -> None:
        self._device, self._static = device_bytes, static_bytes
        self.step_bytes = max(int(STEP_SHARE * device_bytes), 1)
        self._refused, self._missed = Misses(), Misses()
        self._began_s: float | None = None

    def refused(self, nbytes: int, cost_ms: float) -> None:
        """A signal found no room; its ranking has so much more to compute."""
        self._refused.add(cost_ms, nbytes)

    def missed(self, cost_ms: float) -> None:
        """A visit found that its state had left the device a step ago."""
        self._missed.add(cost_ms, 0)

    def bound(self, now_s: float, bound_bytes: int, t_life_s: float) -> int:
        """What the bound, now `bound_bytes`, should be; the same except at the end of an interval."""
        if self._began_s is None:
            self._began_s = now_s
        past_s = now_s - self._began_s
        if past_s < _INTERVAL_S:
            return bound_bytes
        wanted = self._wanted(bound_bytes, past_s, t_life_s)
        self._refused, self._missed = Misses(), Misses()
        self._began_s = now_s
        return wanted

    def _wanted(self, bound: int, past_s: float, t_life_s: float) -> int:
        if self._refused.count + self._missed.count < _LEAST:
            back = self._static - bound
            return bound + max(-self.step_bytes, min(self.step_bytes, back))
        live, reuse = self._saved_ms(past_s, t_life_s), self._missed.cost_ms
        if live > _CLEARLY * reuse:
            return self._within(bound + self.step_bytes, bound)
        if reuse > _CLEARLY * live:
            return self._within(bound - self.step_bytes, bound)
        return bound

    def _within(self, wanted: int, bound: int) -> int:
        """Not beyond the limits, nor towards them from outside: a static bound may lie there."""
        low, high = int(_LEAST_SHARE * self._device), int(_MOST_SHARE * self._device)
        return min(wanted, max(high, bound)) if wanted > bound else max(wanted, min(low, bound))

    def _saved_ms(self, past_s: float, t_life_s: float) -> float:
        """What a step more would have saved of the refused."""
        refused = self._refused
        if not refused.count:
            return 0.0
        lives = past_s / t_life_s if t_life_s > 0 else 1.0
        admitted = lives * self.step_bytes * refused.count / max(refused.nbytes, 1)
        return refused.cost_ms * min(admitted / refused.count, 1.0)
