"""Points in time to train on: one window of a user's events serves several cuts, each with its own past.

A group is the run of a user's events in one second. A cut asks to rank a group knowing only what came
strictly before that second, so events of one second never see each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import prefix_lengths


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of the training part that have at least one earlier event of their user.

    All arrays are [groups], int64, with event positions counted over the whole dataset, ascending.

    Attributes:
        start, stop: the group's events.
        user_start: the first event of the group's user.
        cumulative: float64, ascending to 1; the steps are the probabilities of drawing the groups.
    """

    start: Int64s
    stop: Int64s
    user_start: Int64s
    cumulative: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.start)

    def draw(self, rng: np.random.Generator) -> int:
        """A group, later ones more often."""
        return min(int(np.searchsorted(self.cumulative, rng.random(), side="right")), len(self) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Events [start, stop) of one user, and the groups to rank, ascending.

    The last cut's group starts at `stop`: nothing in the window is later than what some cut may see.
    """

    start: int
    stop: int
    cuts: Int64s


def training_groups(events: Events, before_s: int, half_life: float = np.inf) -> Groups:
    """Groups earlier than `before_s`.

    Args:
        half_life: a group this share of the training time before its end is drawn half as often as one at
            the end. Items and habits drift, and what is ranked later resembles the end.

    Raises:
        ConfigError: no user has two different seconds to learn from.
    """
    begins = np.ones(events.n_events, dtype=bool)
    begins[1:] = events.timestamps[1:] != events.timestamps[:-1]
    user_starts = events.offsets[:-1]
    begins[user_starts[user_starts < events.n_events]] = True
    start = np.flatnonzero(begins)
    stop = np.append(start[1:], events.n_events)
    owner = np.searchsorted(events.offsets, start, side="right") - 1
    train_stop = user_starts + prefix_lengths(events, before_s)
    kept = (start > user_starts[owner]) & (start < train_stop[owner])
    if not kept.any():
        raise ConfigError(
            "events", f"{events.path}: no user has events in two different seconds before {before_s} s"
        )
    start = start[kept]
    times = events.timestamps[start].astype(np.float64)
    span = max(before_s - float(times.min()), 1.0)
    weights = np.exp2((times - before_s) / (half_life * span))
    cumulative = np.cumsum(weights) / weights.sum()
    return Groups(start, stop[kept], user_starts[owner[kept]], cumulative)


def draw_window(
    groups: Groups, rng: np.random.Generator, shortest: int, longest: int, most_cuts: int
) -> Window:
    """A window that ends right before a drawn group, and up to `most_cuts` cuts inside it.

    Its length is uniform in [shortest, longest] events, or what the user has.
    """
    last = groups.draw(rng)
    stop = int(groups.start[last])
    length = int(rng.integers(shortest, longest + 1))
    start = max(int(groups.user_start[last]), stop - length)
    # A cut needs at least one event of the window before it.
    first = int(np.searchsorted(groups.start, start, side="right"))
    earlier = min(last - first, most_cuts - 1)
    cuts = np.append(first + rng.choice(last - first, size=earlier, replace=False), last)
    return Window(start, stop, np.sort(cuts))
