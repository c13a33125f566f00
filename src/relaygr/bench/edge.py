"""The edge of what passes on a real server, from a start near it.

A machine that others use is slow for a second now and then, so that one run of a load says little near the
edge. A level is judged by votes: every run that passed there or above is one for it, every run that failed
there or below one against it. An edge is settled when both its sides lead by `votes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import msgspec


class Judged(Protocol):
    """A run of a level's load."""

    @property
    def passes(self) -> bool: ...

    @property
    def easy(self) -> bool:
        """Whether it passed so well that the edge is not near."""

    @property
    def far(self) -> bool:
        """Whether it failed so early that the edge is not near."""


Run = TypeVar("Run", bound=Judged)
Try = Callable[[int], Awaitable[Run]]
"""Runs the load of a level, each time with other draws."""


class Edge(msgspec.Struct, Generic[Run], frozen=True, kw_only=True):
    """What a search on real servers tried, in order.

    Attributes:
        level: the highest that passes by its votes, or is known to pass; None if none does. All that was not
            searched to its end may pass more, never less.
        fails: the lowest above it that fails by its votes; None if none does.
        bracketed: whether this level, and that the one above fails, are settled; or all that is worth trying
            passes.
        runs: places in `trials` of those at `level`, or else of those above it that passed; none if it was
            known before.
    """

    level: int | None
    fails: int | None
    bracketed: bool
    trials: tuple[Run, ...]
    runs: tuple[int, ...]


class _Votes:
    """Runs so far, and what they say of levels from `least` to `most`; those up to `known` pass."""

    def __init__(self, least: int, most: int, needed: int, known: int | None) -> None:
        self._least, self._most, self._needed = least, most, needed
        self._known = least - 1 if known is None else known
        self._for: list[int] = []  # levels of votes
        self._against: list[int] = []

    def add(self, level: int, trial: Judged) -> None:
        """One vote; a pass with much room settles its level alone, which noise cannot have made."""
        if trial.passes:
            self._for += [level] * (self._needed if trial.easy else 1)
        else:
            self._against.append(level)

    def lead(self, level: int) -> int:
        """Votes for a level over those against it; it falls from level to level."""
        return sum(one >= level for one in self._for) - sum(one <= level for one in self._against)

    @property
    def passed(self) -> bool:
        """Whether a run was won, and not only what was known before."""
        return self.low > max(self._known, self._least - 1)

    @property
    def low(self) -> int:
        """The highest level that passes, `least - 1` without any."""
        # The lead falls behind levels with votes for them, and at those with votes against.
        ends = (*self._for, *(one - 1 for one in self._against))
        voted = max((one for one in ends if self.lead(one) > 0), default=self._known)
        return max(min(max(voted, self._known), self._most), self._least - 1)

    @property
    def high(self) -> int:
        """The lowest level above `low` that fails, `most + 1` without any."""
        low, starts = self.low, (*self._against, *(one + 1 for one in self._for))
        return min((one for one in starts if one > low and self.lead(one) < 0), default=self._most + 1)

    @property
    def tied(self) -> int | None:
        """The lowest level between the two that was tried, to no avail."""
        low, high = self.low, self.high
        return min((one for one in (*self._for, *self._against) if low < one < high), default=None)

    @property
    def unsettled(self) -> int | None:
        """The side of an edge that needs another run; what fails first, which is given up early."""
        low, high = self.low, self.high
        if high <= self._most and self.lead(high) > -self._needed:
            return high
        if low >= self._least and low > self._known and self.lead(low) < self._needed:
            return low
        return None


async def find_edge(
    attempt: Try[Run],
    least: int,
    most: int,
    tries: int,
    more: Callable[[bool], bool] = lambda found: True,
    known: int | None = None,
    votes: int = 1,
    leap: int = 4,
) -> Edge[Run]:
    """The highest level that passes: from level 0 up or down in growing steps, until halving is less.

    Args:
        least, most: levels that are worth trying; 0 is between them.
        tries: at most, and as many again while nothing has passed.
        more: whether there is time for another one, told whether a run has passed; the first is made anyway.
        known: a level that passes without being tried.
        votes: that each side of the edge must lead by. With more than one, nothing is left for a lower level
            because of a single run.
        leap: levels to go up at least after a run that passed with much room.
    """
    told = _Votes(least, most, votes, known)
    trials: list[Run] = []
    levels: list[int] = []
    level, step = max(0, told.low + 1), 1
    bracketed = told.low >= most
    while not bracketed:
        found = told.passed
        if trials and (len(trials) >= (tries if found else 2 * tries) or not more(found)):
            break
        levels.append(level)
        trials.append(await attempt(level))
        told.add(level, trials[-1])
        low, high, tied = told.low, told.high, told.tied
        again = told.unsettled
        if tied is not None:
            level = tied
        elif high - low == 1 or (not told.passed and again == high):
            bracketed = again is None
            level = level if again is None else again
        else:
            stride = max(step, _boost(trials[-1], leap))
            up, down = min(low + stride, most), max(high - stride, least)
            if low >= least and high <= most:
                # Near what was tried last, as long as that is nearer than the middle.
                middle = (low + high) // 2
                level = min(up, middle) if trials[-1].passes else max(down, middle)
            else:
                level = up if low >= least else down
            step = max(2 * step, stride)
    low = told.low
    places = [place for place, one in enumerate(levels) if one == low]
    above = [place for place, one in enumerate(levels) if one > low and trials[place].passes]
    return Edge(
        level=low if low >= least else None,
        fails=told.high if told.high <= most else None,
        bracketed=bracketed,
        trials=tuple(trials),
        runs=tuple(places or (above if told.passed else ())),
    )


def _boost(trial: Judged, leap: int) -> int:
    """How much farther to go after a run that was far from the edge."""
    if trial.passes:
        return leap if trial.easy else 1
    return 2 if trial.far else 1
