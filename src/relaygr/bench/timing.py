"""Fair timing on a noisy machine: variants take turns, so that a slow second hits all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing to time.

    Attributes:
        runs: samples to take; 0 means one every round.
        warm: run it once untimed before each sample, so that the caches hold its own data and not the
            variant's before it.
    """

    name: str
    call: Callable[[], object]
    runs: int = 0
    warm: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of each run, in the order they happened."""

    name: str
    times_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def min_ms(self) -> float:
        return min(self.times_ms)

    def percentile_ms(self, percent: float) -> float:
        """The smallest sample that at least `percent` % of the samples do not exceed (nearest rank)."""
        rank = math.ceil(percent / 100 * len(self.times_ms))
        return sorted(self.times_ms)[max(rank, 1) - 1]


def time_ms(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def round_robin(
    variants: Sequence[Variant], rounds: int, limit_s: float = math.inf, least: int = 1
) -> tuple[Timing, ...]:
    """Run every variant once a round, the ones with fewer `runs` in evenly spread rounds.

    Args:
        rounds: most rounds.
        limit_s: no further round starts after this long, once `least` rounds are done.

    Returns:
        One timing per variant, in their order, each with at least one sample.
    """
    times: list[list[float]] = [[] for _ in variants]
    start = time.perf_counter()
    for turn in range(max(rounds, 1)):
        if turn >= least and time.perf_counter() - start > limit_s:
            break
        for variant, samples in zip(variants, times, strict=True):
            if _due(turn, rounds, variant.runs or rounds):
                if variant.warm:
                    variant.call()
                samples.append(time_ms(variant.call))
    return tuple(Timing(v.name, tuple(samples)) for v, samples in zip(variants, times, strict=True))


def _due(turn: int, rounds: int, runs: int) -> bool:
    """True in `runs` of `rounds` turns, evenly spread; the first turn is always one of them."""
    return turn == 0 or turn * runs // rounds > (turn - 1) * runs // rounds
