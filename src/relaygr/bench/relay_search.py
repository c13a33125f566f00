"""Confirms on real servers what the simulator found: the edge of what passes, from a start near it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from relaygr.bench.relay_point import Trial

Try = Callable[[int], Awaitable[Trial]]
"""Runs the load of a level."""


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """What a search on real servers tried, in order.

    Attributes:
        level: the highest that passed, or is known to pass; None if none did.
        bracketed: whether the level above it failed, too, or is beyond what is worth trying.
    """

    level: int | None
    bracketed: bool
    trials: tuple[Trial, ...]


async def find_edge(
    attempt: Try,
    least: int,
    most: int,
    tries: int,
    more: Callable[[bool], bool] = lambda found: True,
    known: int | None = None,
) -> Edge:
    """The highest level that passes: from level 0 up or down in growing steps, then halving what is between.

    Args:
        least, most: levels that are worth trying; 0 is between them.
        tries: at most, and as many again while nothing has passed.
        more: whether there is time for another one, told whether anything has passed; the first is made
            anyway.
        known: a level that passes without being tried.
    """
    low, high = least - 1, most + 1
    if known is not None:
        low = max(known, low)
    trials: list[Trial] = []
    level, step = max(0, low + 1), 1
    while high - low > 1:
        found = low >= least
        if trials and (len(trials) >= (tries if found else 2 * tries) or not more(found)):
            break
        trials.append(await attempt(level))
        if trials[-1].passes:
            low = level
            step *= 4 if trials[-1].easy else 1
        else:
            high = level
            step *= 2 if trials[-1].far else 1
        if low >= least and high <= most:
            level = (low + high) // 2
        elif low >= least:
            level = min(low + step, most)
        else:
            level = max(high - step, least)
        step *= 2
    return Edge(level=low if low >= least else None, bracketed=high - low == 1, trials=tuple(trials))
