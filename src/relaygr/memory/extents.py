"""Free stretches of one buffer: best fit, neighbours join again when freed."""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """Which of [0, size) is free; units are the caller's.

    Changes: `take` and `give` move units between free and taken; nothing else does.
    Raises: ValueError for a stretch that is outside, or partly free already.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size: {size} must be at least 1")
        self.size = size
        self._starts, self._lengths = [0], [size]

    @property
    def free(self) -> int:
        return sum(self._lengths)

    @property
    def largest(self) -> int:
        """The longest stretch that `take` can still give."""
        return max(self._lengths, default=0)

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """(start, length) of each free stretch, in order; no two touch."""
        return tuple(zip(self._starts, self._lengths, strict=True))

    def take(self, length: int) -> int | None:
        """Start of a stretch, from the shortest that is long enough; None if there is none."""
        if length < 1:
            raise ValueError(f"length: {length} must be at least 1")
        fits = [(have, i) for i, have in enumerate(self._lengths) if have >= length]
        if not fits:
            return None
        have, i = min(fits)
        start = self._starts[i]
        if have == length:
            del self._starts[i], self._lengths[i]
        else:
            self._starts[i], self._lengths[i] = start + length, have - length
        return start

    def give(self, start: int, length: int) -> None:
        """Free [start, start + length)."""
        i = bisect_left(self._starts, start)
        before = self._starts[i - 1] + self._lengths[i - 1] if i else 0
        after = self._starts[i] if i < len(self._starts) else self.size
        if length < 1 or start < before or start + length > after:
            raise ValueError(f"[{start}, {start + length}) is not a taken stretch of [0, {self.size})")
        joins_before, joins_after = (
            i > 0 and before == start,
            i < len(self._starts) and after == start + length,
        )
        if joins_after:
            self._starts[i], self._lengths[i] = start, self._lengths[i] + length
        else:
            self._starts.insert(i, start)
            self._lengths.insert(i, length)
        if joins_before:
            self._lengths[i - 1] += self._lengths[i]
            del self._starts[i], self._lengths[i]
