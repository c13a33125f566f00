"""Ids of equal pages: which are free, and which of them lie side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.intp]


class PageAllocator:
    """Hands out page ids 0..total-1 and knows exactly how many are left.

    Changes: `take` and `free` move ids between free and taken; each free raises the page's generation.
    "No" is None from `take`, and then nothing was taken.
    Raises: ValueError for a negative count; freeing an id that is not taken is a broken invariant
    (AssertionError).

    Free pages are kept twice: as flags, for tests and scattered picks, and as the bits of one integer, on
    which "first run of n" is log2(n) shifts over total/8 bytes, independent of fragmentation.
    """

    __slots__ = ("_bits", "_flags", "_free_count", "_generations", "total")

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"total: {total} must be at least 1")
        self.total = total
        self._flags = np.ones(total, np.bool_)
        self._bits = (1 << total) - 1
        self._generations = np.zeros(total, np.int64)
        self._free_count = total

    @property
    def free_count(self) -> int:
        return self._free_count

    def generation(self, page: int) -> int:
        """How often `page` has been freed: an id with another generation is another page."""
        return int(self._generations[page])

    def is_free(self, page: int) -> bool:
        return bool(self._flags[page])

    def take(self, n: int, after: int | None = None) -> tuple[int, ...] | None:
        """Take `n` pages: the run right behind `after`, else the first run of n, else the lowest n ids."""
        if n < 0:
            raise ValueError(f"n: {n} must not be negative")
        if n > self._free_count:
            return None
        if n == 0:
            return ()
        start = self._adjacent(n, after)
        if start is None:
            start = self._first_run(n)
        if start is not None:
            self._flags[start : start + n] = False
            self._bits ^= _run_mask(start, n)
            pages = tuple(range(start, start + n))
        else:
            ids = np.flatnonzero(self._flags)[:n]
            self._flags[ids] = False
            self._bits ^= self._mask(ids)
            pages = tuple(ids.tolist())
        self._free_count -= n
        return pages

    def free(self, ids: Sequence[int] | PageIds) -> None:
        """Give pages back, in any order."""
        freed = np.asarray(ids, np.intp)
        if not freed.size:
            return
        first = int(freed[0])
        is_run = _is_run(freed)
        assert (first if is_run else int(freed.min())) >= 0, "page ids are not negative"
        where = slice(first, first + freed.size) if is_run else freed
        assert not np.count_nonzero(self._flags[where]), "double free"
        mask = self._mask(freed)
        assert mask.bit_count() == freed.size, "the same page twice in one free"
        self._flags[where] = True
        self._bits |= mask
        self._generations[where] += 1
        self._free_count += freed.size

    def _adjacent(self, n: int, after: int | None) -> int | None:
        if after is None or after + 1 + n > self.total:
            return None
        return after + 1 if np.count_nonzero(self._flags[after + 1 : after + 1 + n]) == n else None

    def _first_run(self, n: int) -> int | None:
        starts, length = self._bits, 1  # bit i of `starts`: pages i .. i+length-1 are all free
        while length < n and starts:
            step = min(length, n - length)
            starts &= starts >> step
            length += step
        return (starts & -starts).bit_length() - 1 if starts else None

    def _mask(self, ids: PageIds) -> int:
        if _is_run(ids):
            return _run_mask(int(ids[0]), ids.size)
        flags = np.zeros(self.total, np.bool_)
        flags[ids] = True
        return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _is_run(ids: PageIds) -> bool:
    """Whether each of them is followed by the next id."""
    steps = ids.size - 1
    return int(ids[-1]) - int(ids[0]) == steps and np.count_nonzero(ids[1:] - ids[:-1] == 1) == steps


def _run_mask(start: int, n: int) -> int:
    return ((1 << n) - 1) << start
