"""Measured over predicted time in a window of recent passes, with its P99 always at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from relaygr.relay.quantile import QuantileWindow, percentile

WINDOW = 2000


@dataclass(frozen=True, slots=True)
class ErrorRatio:
    """Measured over predicted time.

    Attributes:
        samples: passes in the window; without any, the ratios are 1 and the error 0.
        median, p99: percentiles, linear between the two nearest samples.
        mean_error: mean of |ratio - 1|.
    """

    samples: int
    median: float
    p99: float
    mean_error: float


class RatioWindow:
    """The last `limit` ratios."""

    def __init__(self, ratios: Iterable[float] = (), limit: int = WINDOW) -> None:
        """Raises ValueError for a limit below 1."""
        self._window = QuantileWindow(0.99, 1.0, limit, ratios)
        # Kept ready, so that another thread reads one value and never a list that is being changed.
        self.p50 = self._window.at(0.5)

    def __len__(self) -> int:
        return len(self._window)

    @property
    def p99(self) -> float:
        """1 for an empty window; any thread may ask."""
        return self._window.value

    def add(self, ratio: float) -> None:
        self._window.add(ratio)
        self.p50 = self._window.at(0.5)

    def error(self) -> ErrorRatio:
        """Linear in the window; for an exporter, not for every pass."""
        ordered = self._window.ordered()
        if not ordered:
            return ErrorRatio(0, 1.0, 1.0, 0.0)
        mean = sum(abs(ratio - 1) for ratio in ordered) / len(ordered)
        return ErrorRatio(len(ordered), percentile(ordered, 0.5), percentile(ordered, 0.99), mean)
