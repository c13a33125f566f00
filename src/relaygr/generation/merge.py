"""The best candidates of many sorted lists, without looking at most of them.

For selection that is handed per-beam lists (log-probability descending, code ascending), for example by a
fused top-k, or for decoding without a catalogue. `merge_pruned` stops early with a heap; `merge_heads`
walks the heads of all lists. Both give the order of selection: score descending, parent rank, code.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SortedList:
    """What may follow one beam.

    Attributes:
        logprobs: float [k], descending; -inf is allowed and never chosen.
        codes: int [k], ascending where logprobs are equal.
        complete: whether the list holds everything that may follow. One that was cut must be at least as
            long as the number of results. A cut list is exact as long as no two of its log-probabilities,
            different as they are, give the same sum: fp64 sums of fp32 values practically never do.
    """

    logprobs: npt.NDArray[np.floating]
    codes: npt.NDArray[np.integer]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Merged:
    """The chosen candidates, best first.

    Attributes:
        scores: float64 [m].
        parents: int64 [m]; index of the list.
        codes: int64 [m].
        examined: candidates whose sum was computed.
        total: candidates in all lists.
    """

    scores: Float64
    parents: Int64
    codes: Int64
    examined: int
    total: int


Key = tuple[float, int, int]  # score, -rank, -code: greater is better


def merge_pruned(scores: Sequence[float] | Float64, lists: Sequence[SortedList], count: int) -> Merged:
    """The best `count` of all `scores[b] + lists[b]`; stops where nothing better can follow.

    Beams are taken best first. A list is left at the first candidate strictly worse than the worst kept; the
    rest of the beams are left when a beam's own score is strictly worse than that, which only holds if no
    log-probability is positive. Rounding keeps sums monotone in the log-probability, so both are exact; an
    equal score may still win its tie and is examined.

    Raises:
        ValueError: a list is not sorted, holds NaN or +inf, or was cut too short; a score is not finite.
    """
    sums = _check(scores, lists, count)
    may_stop = all(len(entry.logprobs) == 0 or float(entry.logprobs[0]) <= 0.0 for entry in lists)
    heap: list[Key] = []
    examined = 0
    for beam in np.argsort(-sums, kind="stable").tolist():
        base = float(sums[beam])
        if may_stop and len(heap) == count and base < heap[0][0]:
            break
        entry = lists[beam]
        for step in range(len(entry.logprobs)):
            examined += 1
            score = base + float(entry.logprobs[step])
            if score == -np.inf or (len(heap) == count and score < heap[0][0]):
                break
            key = (score, -beam, -int(entry.codes[step]))
            if len(heap) < count:
                heapq.heappush(heap, key)
            elif key > heap[0]:
                heapq.heapreplace(heap, key)
    return _merged(sorted(heap, reverse=True), examined, lists)


def merge_heads(scores: Sequence[float] | Float64, lists: Sequence[SortedList], count: int) -> Merged:
    """The same result by a k-way merge of the heads: looks at one candidate a list and one a result.

    Where rounding makes sums of one list equal, the whole run is looked at, because codes decide it.

    Raises:
        ValueError: as `merge_pruned`.
    """
    sums = _check(scores, lists, count)
    runs = [_Runs(beam, float(sums[beam]), entry) for beam, entry in enumerate(lists)]
    heads = [(-run.score, run.beam) for run in runs if run.score > -np.inf]
    heapq.heapify(heads)
    chosen: list[Key] = []
    while heads and len(chosen) < count:
        run = runs[heads[0][1]]
        chosen.extend(run.take(count - len(chosen)))
        if run.score > -np.inf:
            heapq.heapreplace(heads, (-run.score, run.beam))
        else:
            heapq.heappop(heads)
    return _merged(chosen, sum(run.examined for run in runs), lists)


class _Runs:
    """A list as runs of equal sums; `score` is that of the next run, -inf behind the last."""

    def __init__(self, beam: int, base: float, entry: SortedList) -> None:
        self.beam, self.base, self.entry = beam, base, entry
        self.at = self.examined = 0
        self.score = self._look(0)

    def _look(self, at: int) -> float:
        if at >= len(self.entry.logprobs):
            return -np.inf
        self.examined += 1
        return self.base + float(self.entry.logprobs[at])

    def take(self, count: int) -> list[Key]:
        """The best `count` of the run, by code; moves to the next run."""
        score, start = self.score, self.at
        while self.score == score:
            self.at += 1
            self.score = self._look(self.at)
        codes = sorted(int(code) for code in self.entry.codes[start : self.at])
        return [(score, -self.beam, -code) for code in codes[:count]]


def _check(scores: Sequence[float] | Float64, lists: Sequence[SortedList], count: int) -> Float64:
    sums = np.asarray(scores, dtype=np.float64)
    if count < 1:
        raise ValueError(f"count: {count} must be at least 1")
    if sums.shape != (len(lists),):
        raise ValueError(f"scores: shape {sums.shape} for {len(lists)} lists")
    if not np.isfinite(sums).all():
        raise ValueError("scores: must be finite")
    for beam, entry in enumerate(lists):
        _check_list(beam, entry, count)
    return sums


def _check_list(beam: int, entry: SortedList, count: int) -> None:
    logprobs, codes = entry.logprobs, entry.codes
    if logprobs.ndim != 1 or logprobs.shape != codes.shape:
        raise ValueError(f"list {beam}: log-probabilities {logprobs.shape} and codes {codes.shape} differ")
    if np.isnan(logprobs).any() or np.isposinf(logprobs).any():
        raise ValueError(f"list {beam}: holds NaN or +inf")
    ordered = (logprobs[:-1] > logprobs[1:]) | ((logprobs[:-1] == logprobs[1:]) & (codes[:-1] < codes[1:]))
    if not ordered.all():
        where = int(np.argmin(ordered))
        raise ValueError(
            f"list {beam}: not sorted by (log-probability descending, code ascending) at entry {where + 1}"
        )
    if not entry.complete and len(logprobs) < count:
        raise ValueError(
            f"list {beam}: cut to {len(logprobs)} entries, {count} results need at least as many"
        )


def _merged(keys: list[Key], examined: int, lists: Sequence[SortedList]) -> Merged:
    return Merged(
        scores=np.array([key[0] for key in keys], dtype=np.float64),
        parents=np.array([-key[1] for key in keys], dtype=np.int64),
        codes=np.array([-key[2] for key in keys], dtype=np.int64),
        examined=examined,
        total=sum(len(entry.logprobs) for entry in lists),
    )
