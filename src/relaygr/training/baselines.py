"""What a trained ranker must beat: global popularity, and the user's own most recent items."""

from __future__ import annotations

import numpy as np

from relaygr.data.dataset import Int64s
from relaygr.training.catalogue import Catalogue
from relaygr.training.metrics import Floats


def popularity_scores(catalogue: Catalogue, candidates: Int64s) -> Floats:
    """Training events of each candidate, [m]."""
    return catalogue.counts_of(candidates).astype(np.float64)


class RecentItems:
    """When a user last touched each item; grows with the history of that user."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._seen = 0

    def advance(self, items: Int64s, times: Int64s, end: int) -> None:
        """Take the user's events up to (not including) `end` into account."""
        self._last.update(
            zip(items[self._seen : end].tolist(), times[self._seen : end].tolist(), strict=True)
        )
        self._seen = end

    def scores(self, candidates: Int64s, popularity: Floats) -> Floats:
        """The later an item was touched the better, never touched items last, ties by popularity; [m]."""
        last = np.array([self._last.get(item, -1) for item in candidates.tolist()], dtype=np.int64)
        # Dense ranks of (time, popularity): exact whatever the magnitudes, and equal for equal pairs.
        order = np.lexsort((popularity, last))
        changed = np.ones(len(order), dtype=bool)
        changed[1:] = (np.diff(last[order]) != 0) | (np.diff(popularity[order]) != 0)
        ranks = np.empty(len(order), dtype=np.float64)
        ranks[order] = np.cumsum(changed)
        return ranks
