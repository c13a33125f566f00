"""Who came when, with how long a history, and how much of it was as before: all that a replay needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests as columns, in order of time.

    Attributes:
        name: what it is, in a few words.
        time_ms: [requests] not decreasing.
        user: [requests] in [0, `users`); every one of them comes.
        length: [requests] history tokens.
        same: [requests] how many of them, from the first on, are as in the longest history that the user had
            and that nothing has changed since; 0 where the user comes for the first time.
        base_tokens: the footprint that shares of it refer to: of all users, unless a part of them came on top
            of a trace whose capacities are to stay comparable.
    """

    name: str
    time_ms: Ints
    user: Ints
    length: Ints
    same: Ints
    users: int
    base_tokens: int

    def __len__(self) -> int:
        return len(self.time_ms)

    @property
    def first(self) -> Bools:
        """[requests] whether the user comes for the first time."""
        _, places = np.unique(self.user, return_index=True)
        found = np.zeros(len(self), np.bool_)
        found[places] = True
        return found

    @property
    def peaks(self) -> Ints:
        """[users] the longest history of each."""
        return peaks(self.user, self.length, self.users)

    @property
    def footprint_tokens(self) -> int:
        """What all users take together, each at its longest."""
        return int(self.peaks.sum())

    @property
    def warmup(self) -> int:
        """Requests of the first third, which fill a cache and are not counted."""
        return len(self) // 3


def peaks(user: Ints, length: Ints, users: int) -> Ints:
    """[users] the longest of the lengths of each."""
    found = np.zeros(users, np.int64)
    np.maximum.at(found, user, length)
    return found


def windowed(events: Ints, new: Ints, limit: int, stride: int) -> tuple[Ints, Ints]:
    """Length and unchanged part of histories that a model reads through a window.

    Args:
        events: [requests] that the user has.
        new: [requests] how many of them came since the request before; all of them at the first.
        limit: the model's longest history.
        stride: the window starts 0, 1, 2, ... strides behind the first event, whatever is the least that
            fits, and none is longer than the window; where it moves, nothing is as before. 0 keeps the first
            `limit` events for ever.
    """
    if not stride:
        length = np.minimum(events, limit)
        return length, np.minimum(events - new, limit)
    before = events - new
    start, start_before = _starts(events, limit, stride), _starts(before, limit, stride)
    return events - start, np.where(start == start_before, before - start_before, 0)


def _starts(events: Ints, limit: int, stride: int) -> Ints:
    starts: Ints = np.maximum(-((limit - events) // stride), 0) * stride
    return starts
