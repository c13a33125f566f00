"""Whether the machine still runs at the speed that tau was measured at: budgets are in units of that."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from relaygr.bench.relay_speed import Speed
from relaygr.bench.relay_wire import clock

Passes = Callable[[], Awaitable[Sequence[float]]]
"""Times some lone passes, milliseconds, on the same servers whatever is being searched for."""

_MEDIAN, _TENTH = 1.1, 1.25  # times tau, up to which the median and the 90th percentile are as they should be
_SCATTER = 1.1  # times the 90th percentile behind tau, if that is more
_PAUSE_S = 1.0


class Steady(Protocol):
    """What a search asks of the machine after a load has failed."""

    async def holds(self) -> bool:
        """Whether it is as fast as it was."""

    async def wait(self) -> bool:
        """Until it is; False if that takes too long."""


class Probe:
    """Asks lone passes; see `Steady`.

    Attributes:
        waited_s: so far, in all.
    """

    def __init__(self, passes: Passes, speed: Speed, most_s: float) -> None:
        """`most_s`: to wait in all."""
        self._passes, self._most_s = passes, most_s
        self._median_ms = _MEDIAN * speed.tau_ms
        self._tenth_ms = max(_TENTH * speed.tau_ms, _SCATTER * speed.p90_ms)
        self.waited_s = 0.0

    async def holds(self) -> bool:
        passes = await self._passes()
        tenth_ms = statistics.quantiles(passes, n=10)[-1]
        return statistics.median(passes) <= self._median_ms and tenth_ms <= self._tenth_ms

    async def wait(self) -> bool:
        holds = False
        while not holds and self.waited_s < self._most_s:
            begin_s = clock()
            await asyncio.sleep(_PAUSE_S)
            holds = await self.holds()
            self.waited_s += clock() - begin_s
        return holds
