"""What copies and passes have taken, by size: the speeds that decisions rest on, refreshed by every one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

# Weight of the newest sample once a few are there; before, all count alike.
NEWEST = 0.2
# One sample counts as at most so many times slower or faster than what is believed: a pause of the machine
# says nothing about the next copy.
SAMPLE_LIMIT = 4.0
# No belief is further from what was expected beforehand.
FACTOR_LIMIT = 1e4
_SIZES = 64
_REACH, _FURTHEST, _RELAXED = math.log(SAMPLE_LIMIT), math.log(FACTOR_LIMIT), math.log(1.05)


class CopyCost(Protocol):
    """What a copy takes, once it runs."""

    def copy_ms(self, nbytes: int, runs: int) -> float: ...


class ComputeCost(Protocol):
    """What a pass takes."""

    def pass_ms(self, new_tokens: int, cached_tokens: int, candidates: int) -> float: ...


class Compute(NamedTuple):
    """T(q, ctx, c) = t0 + t1 q + t2 (q ctx + q (q + 1) / 2) + t1c c + t2c c (ctx + q + 1), in milliseconds.

    Attributes:
        t1_ms: of a history token; t2_ms: of it and one key it sees.
        t0_ms: of a pass as such.
        t1c_ms, t2c_ms: of a candidate, and of it and one key; None for as much as a history token's.
    """

    t1_ms: float
    t2_ms: float
    t0_ms: float = 0.0
    t1c_ms: float | None = None
    t2c_ms: float | None = None

    def pass_ms(self, new_tokens: int, cached_tokens: int, candidates: int) -> float:
        t1c = self.t1_ms if self.t1c_ms is None else self.t1c_ms
        t2c = self.t2_ms if self.t2c_ms is None else self.t2c_ms
        pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
        scoring = candidates * (t1c + t2c * (cached_tokens + new_tokens + 1))
        return self.t0_ms + self.t1_ms * new_tokens + self.t2_ms * pairs + scoring


class Link(NamedTuple):
    """A copy in milliseconds: `fix_ms`, and `run_ms` for each run, and its bytes at one speed.

    The speed is that of the whole way: what decoding a format takes is part of it.
    """

    bytes_per_s: float
    fix_ms: float = 0.0
    run_ms: float = 0.0

    def copy_ms(self, nbytes: int, runs: int) -> float:
        return self.fix_ms + runs * self.run_ms + 1000 * nbytes / self.bytes_per_s


class Factors:
    """How many times longer than expected work of each size takes: one number per power of two.

    Changes: `observe` moves the size it names, and sizes never observed, which go by the nearest that was.
    Each is a mean of logarithms in which the newest sample weighs `NEWEST`; samples beyond `SAMPLE_LIMIT`
    times the mean count as that far, so that one moves it by a third, and a lasting change by all of it.
    """

    __slots__ = ("_counts", "_factors", "_nearest")

    def __init__(self) -> None:
        self._counts = [0] * _SIZES
        self._factors = [1.0] * _SIZES  # of sizes that were observed, and what was expected of others
        self._nearest = list(range(_SIZES))

    @property
    def known(self) -> bool:
        return any(self._counts)

    def of(self, size: int) -> float:
        return self._factors[self._nearest[_bucket(size)]]

    def observe(self, size: int, ratio: float) -> None:
        """Work of this size took `ratio` times as long as expected; what is not positive is ignored."""
        if not 0 < ratio < math.inf:
            return
        place, believed = _bucket(size), math.log(self.of(size))
        sample = min(max(math.log(ratio), -_FURTHEST), _FURTHEST)
        if self.known:
            sample = min(max(sample, believed - _REACH), believed + _REACH)
        weight = max(1 / (self._counts[place] + 1), NEWEST)
        self._believe(place, believed + weight * (sample - believed))

    def relax(self, size: int) -> None:
        """Believe work of this size a little quicker, down to what was expected beforehand.

        For work that is not done because it is believed slow, so that no belief keeps itself alive.
        """
        believed = math.log(self.of(size))
        if believed > 0:
            self._believe(_bucket(size), max(believed - _RELAXED, 0.0))

    def _believe(self, place: int, logarithm: float) -> None:
        self._counts[place] += 1
        self._factors[place] = math.exp(logarithm)
        if self._counts[place] == 1:
            known = [one for one, count in enumerate(self._counts) if count]
            self._nearest = [_nearest(known, at) for at in range(_SIZES)]


def _nearest(known: list[int], place: int) -> int:
    return min(known, key=lambda one: abs(one - place))


def _bucket(size: int) -> int:
    return min(max(size, 0).bit_length(), _SIZES - 1)


class MeasuredLink:
    """A `CopyCost` that learns from copies, by powers of two of their bytes."""

    def __init__(self, expected: Link) -> None:
        """`expected` is believed until copies were measured."""
        self._expected = expected
        self._factors = Factors()

    def copy_ms(self, nbytes: int, runs: int) -> float:
        return self._factors.of(nbytes) * self._expected.copy_ms(nbytes, runs)

    def bytes_per_s(self, nbytes: int) -> float:
        """The speed at which a copy of this size is believed to go."""
        return 1000 * nbytes / self.copy_ms(nbytes, 1) if nbytes else 0.0

    def observe(self, nbytes: int, runs: int, ms: float) -> None:
        if nbytes > 0:
            self._factors.observe(nbytes, ms / self._expected.copy_ms(nbytes, runs))

    def relax(self, nbytes: int) -> None:
        self._factors.relax(nbytes)


class Part(NamedTuple):
    """One request's share of a pass."""

    new_tokens: int
    cached_tokens: int
    candidates: int


class MeasuredCompute:
    """A `ComputeCost` that learns from passes, by powers of two of the microseconds expected of them.

    What a pass costs as such shows in the factors of small ones.
    """

    def __init__(self, expected: Compute) -> None:
        """Only the proportions of `expected` matter once passes were measured."""
        self._expected = expected
        self._factors = Factors()

    @property
    def known(self) -> bool:
        """Whether a pass was measured."""
        return self._factors.known

    def pass_ms(self, new_tokens: int, cached_tokens: int, candidates: int) -> float:
        expected = self._expected.pass_ms(new_tokens, cached_tokens, candidates)
        return self._factors.of(int(1000 * expected)) * expected

    def observe(self, parts: Sequence[Part], ms: float) -> None:
        """Requests that ran together took so long."""
        expected = sum(self._expected.pass_ms(*part) for part in parts)
        if expected > 0:
            self._factors.observe(int(1000 * expected), ms / expected)
