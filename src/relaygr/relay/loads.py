"""How many passes of each kind come a second and how long one takes, over the last seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Of work: one request each, whatever batch it ran in."""

    RANK = "rank"
    PRE = "pre"


@dataclass(slots=True)
class _Work:
    """Of one kind: what came, and what was done in how much time."""

    arrived: int = 0
    served: int = 0
    busy_ms: float = 0.0


_Slice = dict[Kind, _Work]
"""What happened between two ticks of the meter."""

_KINDS = tuple(Kind)


def _empty() -> _Slice:
    return {kind: _Work() for kind in _KINDS}


def _sum(parts: Iterable[_Slice]) -> _Slice:
    """All of them together."""
    whole = _empty()
    for part in parts:
        for kind, work in part.items():
            total = whole[kind]
            total.arrived += work.arrived
            total.served += work.served
            total.busy_ms += work.busy_ms
    return whole


class LoadMeter:
    """Arrivals and service times in a window that moves in tenths of itself.

    A clock that steps back counts as one that stands still. Not for several threads.
    """

    def __init__(self, window_s: float = 5.0, slices: int = 10) -> None:
        """Raises ValueError unless the window and its slices are positive."""
        if not window_s > 0 or slices < 1:
            raise ValueError(f"window_s {window_s} and slices {slices} must be positive")
        self._slice_s = window_s / slices
        self._limit = slices
        self._first = self._tick = 0
        self._end_s = -math.inf  # of the current slice
        # By tick, empty until the first call; the current one is not over, and one more than the limit.
        self._slices: dict[int, _Slice] = {}
        self._current = _empty()
        # Of all of them: sums that are made anew with every tick, and grow until the next.
        self._whole = _empty()
        self._mean_ms: dict[Kind, float] = dict.fromkeys(Kind, 0.0)

    def arrive(self, kind: Kind, now_s: float) -> None:
        """A request wants to be served, whether or not it will be."""
        self._now(now_s)[kind].arrived += 1
        self._whole[kind].arrived += 1

    def serve(self, kind: Kind, busy_ms: float, now_s: float, requests: int = 1) -> None:
        """So many requests took so much time of a model slot together; 0 for a part of one that goes on.

        Raises:
            ValueError: the time or the number is negative or not a number.
        """
        if not (busy_ms >= 0 and requests >= 0):
            raise ValueError(f"busy_ms {busy_ms} and requests {requests} must be at least 0")
        current = self._now(now_s)[kind]
        whole = self._whole[kind]  # which the line above may have made anew
        current.served += requests
        current.busy_ms += busy_ms
        whole.served += requests
        whole.busy_ms += busy_ms
        if whole.served:
            self._mean_ms[kind] = whole.busy_ms / whole.served

    def rate_per_s(self, kind: Kind, now_s: float) -> float:
        """Arrivals a second in the window, or since the first call; at first, a slice counts as over."""
        self._now(now_s)
        slice_s = self._slice_s
        since_s = now_s - max(self._first, self._tick - self._limit) * slice_s
        return self._whole[kind].arrived / max(since_s, slice_s)

    def mean_ms(self, kind: Kind) -> float:
        """Slot time of one request in the window, or of the last ones before; 0 before any."""
        return self._mean_ms[kind]

    def share(self, kind: Kind, slots: int, now_s: float) -> float:
        """Of the time of all model slots, what arrives takes; above 1 if it is more than there is."""
        return self.rate_per_s(kind, now_s) * self._mean_ms[kind] / 1000 / slots

    def _now(self, now_s: float) -> _Slice:
        if now_s < self._end_s:
            return self._current
        tick = int(now_s // self._slice_s)
        if not self._slices:
            self._first = tick
        elif tick <= self._tick:
            return self._current
        self._slices = {at: one for at, one in self._slices.items() if at >= tick - self._limit}
        self._whole = _sum(self._slices.values())
        self._tick, self._end_s = tick, (tick + 1) * self._slice_s
        self._current = self._slices[tick] = _empty()
        return self._current
