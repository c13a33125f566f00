"""What is learnt of requests as they end: how early a signal comes, how long a prefix is held, candidates."""

from __future__ import annotations

import math

from relaygr.relay.quantile import QuantileWindow

_WINDOW = 1000
# With fewer, a low or a high quantile says little.
_LEAST_LEADS, _LEAST_LIVES = 20, 100


class LeadTimes:
    """The time from a signal to its ranking that all but few requests have, over the last 1,000."""

    def __init__(self, quantile: float, default_ms: float) -> None:
        """`default_ms` until there are 20."""
        self._window = QuantileWindow(quantile, default_ms, _WINDOW, least=_LEAST_LEADS)

    @property
    def low_ms(self) -> float:
        return self._window.value

    def observe(self, lead_ms: float) -> None:
        """A ranking came `lead_ms` after its signal; before it counts as 0.

        Raises:
            ValueError: not finite.
        """
        self._window.add(max(_finite("lead_ms", lead_ms), 0.0))


class LifeTimes:
    """How long prefixes are needed: the P99 from the start of a pre-inference to the end of its ranking.

    Rankings that found their prefix gone count too, or the time could only shrink.
    """

    def __init__(self, default_ms: float, slack_ms: float) -> None:
        """`default_ms` until 100 requests have ended; `slack_ms` on top of what is measured."""
        self._window = QuantileWindow(0.99, default_ms - slack_ms, _WINDOW, least=_LEAST_LIVES)
        self._slack_ms = slack_ms

    @property
    def t_life_ms(self) -> float:
        return self._window.value + self._slack_ms

    def observe(self, needed_ms: float) -> None:
        """Raises ValueError for a time that is negative or not finite."""
        if _finite("needed_ms", needed_ms) < 0:
            raise ValueError(f"needed_ms: {needed_ms} must not be negative")
        self._window.add(needed_ms)


class CandidateCounts:
    """How many candidates a signal that names none should expect: the P90 of those ranked lately."""

    def __init__(self, default: int) -> None:
        """`default` until some were ranked."""
        self._window = QuantileWindow(0.90, float(default), _WINDOW)

    @property
    def expected(self) -> int:
        return math.ceil(self._window.value)

    def observe(self, candidates: int) -> None:
        self._window.add(float(candidates))


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{name}: {value} must be finite")
    return value
