"""The items of the training part and how often each occurs: popularity, and the pool for negatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """Items [n] in ascending order, their event counts [n] and the running sum of the counts [n]."""

    items: Int64s
    counts: Int64s
    running: Int64s

    def __len__(self) -> int:
        return len(self.items)

    def counts_of(self, ids: Int64s) -> Int64s:
        """Training events of each id, 0 for an unknown one."""
        place = np.minimum(np.searchsorted(self.items, ids), len(self.items) - 1)
        return np.where(self.items[place] == ids, self.counts[place], 0)

    def knows(self, ids: Int64s) -> npt.NDArray[np.bool_]:
        return self.counts_of(ids) > 0

    def draw_popular(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> Int64s:
        """Items in proportion to their counts, with replacement."""
        tickets = rng.integers(self.running[-1], size=shape)
        return self.items[np.searchsorted(self.running, tickets, side="right")]

    def draw_uniform(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> Int64s:
        """Items with equal chances, with replacement."""
        return self.items[rng.integers(len(self.items), size=shape)]


def catalogue_before(events: Events, before_s: int) -> Catalogue:
    """The catalogue of all events earlier than `before_s`.

    Raises:
        ConfigError: there are none.
    """
    items, counts = np.unique(events.item_ids[events.timestamps < before_s], return_counts=True)
    if not len(items):
        raise ConfigError("events", f"{events.path} has no event before the end of training, {before_s} s")
    counts = counts.astype(np.int64)
    return Catalogue(items, counts, np.cumsum(counts))
