"""About how often keys were visited, in fixed memory."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b

_ROWS = 4  # two halves of one hash give a place in each (Kirsch and Mitzenmacher 2006)
_LARGEST = 15
_SAMPLE = 10  # visits a counter, until all are halved
_HALVES = bytes(value // 2 for value in range(256))


class Sketch:
    """Count-min with counters up to 15, all halved after ten visits a counter.

    A key is told from others by its `repr`, not by its `hash`, which another process salts another way.
    Source: Cormode and Muthukrishnan 2005; halving after Einziger, Friedman and Manes 2017, "TinyLFU".
    """

    __slots__ = ("_added", "_rows", "_width")

    def __init__(self, entries: int) -> None:
        self._width = 1 << max(6, (entries - 1).bit_length())
        self._rows = [bytearray(self._width) for _ in range(_ROWS)]
        self._added = 0

    def estimate(self, key: Hashable) -> int:
        """Not below the visits since the last halvings, up to 15, unless another key was forgotten."""
        return self._least(self._places(key))

    def add(self, key: Hashable) -> None:
        places = self._places(key)
        least = self._least(places)
        if least < _LARGEST:
            for row, place in zip(self._rows, places, strict=True):
                if row[place] == least:  # the others are above for another key's sake
                    row[place] += 1
        self._added += 1
        if self._added >= _SAMPLE * self._width:
            self._rows = [row.translate(_HALVES) for row in self._rows]
            self._added //= 2

    def forget(self, key: Hashable) -> None:
        """Its estimate becomes 0; that of keys that share counters with it may sink."""
        places = self._places(key)
        least = self._least(places)
        for row, place in zip(self._rows, places, strict=True):
            row[place] -= least

    def _least(self, places: tuple[int, int, int, int]) -> int:
        a, b, c, d = self._rows
        return min(a[places[0]], b[places[1]], c[places[2]], d[places[3]])

    def _places(self, key: Hashable) -> tuple[int, int, int, int]:
        digest = int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "little")
        first, step, mask = digest & 0xFFFF_FFFF, digest >> 32 | 1, self._width - 1
        return first & mask, first + step & mask, first + 2 * step & mask, first + 3 * step & mask
