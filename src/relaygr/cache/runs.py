"""Chunks of equal size in one long row: which are free, and who gets which stretches of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """Chunks [first, first + chunks), side by side."""

    first: int
    chunks: int

    @property
    def end(self) -> int:
        return self.first + self.chunks


def joined(runs: tuple[Run, ...], more: tuple[Run, ...]) -> tuple[Run, ...]:
    """`runs` and behind them `more`, as one run where they meet."""
    if not runs or not more or runs[-1].end != more[0].first:
        return runs + more
    return (*runs[:-1], Run(runs[-1].first, runs[-1].chunks + more[0].chunks), *more[1:])


def split(runs: tuple[Run, ...], chunks: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The first `chunks` chunks of `runs`, and the others."""
    head: list[Run] = []
    for place, run in enumerate(runs):
        if run.chunks > chunks:
            if chunks:
                head.append(Run(run.first, chunks))
            return tuple(head), (Run(run.first + chunks, run.chunks - chunks), *runs[place + 1 :])
        head.append(run)
        chunks -= run.chunks
    return tuple(head), ()


class RunAllocator:
    """The free stretches of chunks 0..total-1 in address order; neighbours are merged when they are freed.

    Changes: `take` and `free` move chunks between free and taken.
    "No" is None from `take`, and then nothing was taken.
    Raises: ValueError for a negative count; freeing what is not taken is a broken invariant (AssertionError).
    Cost: a search and a shift of two sorted lists with one number per free stretch.
    """

    __slots__ = ("_by_size", "_firsts", "_free_count", "_lengths", "total")

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"total: {total} must be at least 1")
        self.total = total
        self._free_count = 0
        self._firsts: list[int] = []
        self._lengths: dict[int, int] = {}  # first chunk -> chunks
        self._by_size: list[tuple[int, int]] = []  # (chunks, first chunk)
        self._add(0, total)

    @property
    def free_count(self) -> int:
        return self._free_count

    @property
    def free_runs(self) -> tuple[Run, ...]:
        """The free stretches in address order; no two of them touch."""
        return tuple(Run(first, self._lengths[first]) for first in self._firsts)

    def is_free(self, chunk: int) -> bool:
        """Whether a free stretch begins with this chunk, as it does behind one that is taken."""
        return chunk in self._lengths

    def take(self, n: int, after: int | None = None) -> tuple[Run, ...] | None:
        """Take `n` chunks in as few runs as the rules give.

        First what is free from chunk `after` on, which lies right behind a run of the caller's. Then the
        smallest stretch that holds all the rest, the lowest of equal ones; while none does, the largest.
        """
        if n < 0:
            raise ValueError(f"n: {n} must not be negative")
        if n > self._free_count:
            return None
        runs: list[Run] = []
        if after is not None and n:
            adjacent = min(n, self._lengths.get(after, 0))
            if adjacent:
                runs.append(self._carve(after, adjacent))
                n -= adjacent
        while n:
            place = min(bisect_left(self._by_size, (n, -1)), len(self._by_size) - 1)
            length, first = self._by_size[place]
            part = min(n, length)
            runs.append(self._carve(first, part))
            n -= part
        return tuple(runs)

    def free(self, runs: Iterable[Run]) -> None:
        """Give runs back, in any order; a part of one that was taken will do."""
        for first, chunks in runs:
            assert chunks > 0, "a run has chunks"
            assert first >= 0, "chunk ids are not negative"
            assert first + chunks <= self.total, "chunk ids are below the total"
            place = bisect_left(self._firsts, first)
            before = self._firsts[place - 1] if place else None
            behind = self._firsts[place] if place < len(self._firsts) else None
            end = first + chunks
            assert before is None or before + self._lengths[before] <= first, "double free"
            assert behind is None or end <= behind, "double free"
            if behind == end:
                end += self._remove(behind)
            if before is not None and before + self._lengths[before] == first:
                self._remove(before)
                first = before
            self._add(first, end - first)

    def _carve(self, first: int, chunks: int) -> Run:
        length = self._remove(first)
        if chunks < length:
            self._add(first + chunks, length - chunks)
        return Run(first, chunks)

    def _add(self, first: int, length: int) -> None:
        insort(self._firsts, first)
        insort(self._by_size, (length, first))
        self._lengths[first] = length
        self._free_count += length

    def _remove(self, first: int) -> int:
        length = self._lengths.pop(first)
        del self._firsts[bisect_left(self._firsts, first)]
        del self._by_size[bisect_left(self._by_size, (length, first))]
        self._free_count -= length
        return length
