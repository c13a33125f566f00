"""How far the contexts of the lists of late are from those of the first lists."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from relaygr.listwise.arrays import Float64

LISTS = 1_000
_LEAST_STD = 1e-3


class ContextDrift:
    """Means of the step model's features over the last `LISTS` lists, against the first `LISTS`.

    The first ones are the reference from when there are `LISTS` of them. May be told from any thread; holds
    two windows of a number a feature and list. Lists with other features begin anew.
    """

    def __init__(self, lists: int = LISTS) -> None:
        self._lock, self._size = threading.Lock(), lists
        self._names: tuple[str, ...] = ()
        self._ring: Float64 = np.zeros((lists, 0))
        self._told = 0
        self._mean: Float64 | None = None
        self._std: Float64 = np.zeros(0)

    def tell(self, context: Mapping[str, float]) -> None:
        """The context of one list, mean over its picks."""
        if not context:
            return
        names = tuple(context)
        with self._lock:
            if names != self._names:
                self._names, self._told, self._mean = names, 0, None
                self._ring = np.zeros((self._size, len(names)))
            self._ring[self._told % self._size] = list(context.values())
            self._told += 1
            if self._told == self._size:
                self._mean, self._std = self._ring.mean(axis=0), self._ring.std(axis=0)

    def drift(self) -> dict[str, float]:
        """By feature, in standard deviations of a list's mean among the first lists; 0 while they come in."""
        with self._lock:
            if self._mean is None:
                return dict.fromkeys(self._names, 0.0)
            moved = (self._ring.mean(axis=0) - self._mean) / np.maximum(self._std, _LEAST_STD)
            return dict(zip(self._names, moved.tolist(), strict=True))
