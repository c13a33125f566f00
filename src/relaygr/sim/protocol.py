"""Experiments E1 and E2 over any way to probe a load, simulated or real: what passes, and the searches."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

GOOD_SHARE, VALID_SHARE = 0.99, 0.999
SEEDS_TO_PASS = 0.8  # 4 of 5, and all of one
BASE_LENGTH = 2048
# Where the baseline passes at no rate with 2,048 tokens, whatever a ratio to it would be.
SHORTER_BASES = (1536, 1024)
LENGTH_STEP = 128
RESOLUTION = 0.02
_LEAST_TAUS = 1e-4  # of rates, in requests a tau
_MOST_PROBES = 40


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of a probe.

    Attributes:
        good: share of the requests with scores of the whole history within the rank budget from the time
            ranking was due. A variant that shortens histories on purpose counts any history as whole.
        valid: share with scores within the request's budget.
        p99_ms: of the answers, from the time ranking was due.
        served: mean of the history tokens that scores rest on.
    """

    seed: int
    requests: int
    good: float
    valid: float
    p99_ms: float
    served: float

    @property
    def passes(self) -> bool:
        return self.requests > 0 and self.good >= GOOD_SHARE and self.valid >= VALID_SHARE


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A load that was tried, with one share a seed; `planned` seeds, fewer if enough of them failed."""

    variant: str
    rate: float
    length: int
    planned: int
    shares: tuple[Share, ...]

    @property
    def passes(self) -> bool:
        """At least 4 of 5 seeds pass; of one, that one."""
        passed = sum(share.passes for share in self.shares)
        return passed > 0 and passed >= SEEDS_TO_PASS * self.planned

    @property
    def hopeless(self) -> bool:
        """So many seeds have failed that the others need not be tried."""
        failed = sum(not share.passes for share in self.shares)
        return self.planned - failed < SEEDS_TO_PASS * self.planned


Probe = Callable[[str, float, int], Outcome]
"""Serves a load with a variant, at so many requests a second, with histories of so many tokens."""


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What a search tried, in order, and the best that passed; None if nothing did."""

    best: float | None
    probes: tuple[Outcome, ...]


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """E1: the longest histories that pass at one rate.

    Attributes:
        q0: half of the highest rate at which `inline_full` passes with `base_length` tokens, 2,048 unless it
            never does with so many; None if it never does.
        inline, relay: of `inline_full` and `relay_full`.
        ratio: of the longest histories; None without both.
    """

    q0: float | None
    base: Search
    base_length: int = BASE_LENGTH
    inline: Search | None = None
    relay: Search | None = None

    @property
    def ratio(self) -> float | None:
        return _ratio(self.relay, self.inline)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """E2: the highest rates that pass at one length, that of E1's `inline`."""

    length: int
    inline: Search
    relay: Search

    @property
    def ratio(self) -> float | None:
        return _ratio(self.relay, self.inline)


def find_lengths(
    probe: Probe, tau_s: float, relay: str = "relay_full", most: int = 1 << 15, inline: str = "inline_full"
) -> Lengths:
    """E1.

    Args:
        tau_s: the machine's own clock, from which the search for q0 starts.
        most: longest history that is tried.
    """
    for length in (BASE_LENGTH, *SHORTER_BASES):
        base = find_rate(probe, inline, length, 0.1 / tau_s, _LEAST_TAUS / tau_s)
        if base.best is not None:
            break
    else:
        return Lengths(q0=None, base=base)
    q0 = base.best / 2
    return Lengths(
        q0=q0,
        base=base,
        base_length=length,
        inline=find_length(probe, inline, q0, most),
        relay=find_length(probe, relay, q0, most),
    )


def find_rates(
    probe: Probe, length: int, start: float, relay: str = "relay_full", inline: str = "inline_full"
) -> Rates:
    """E2 at `length` tokens, starting from `start` requests a second."""
    least = start / 1024
    return Rates(
        length=length,
        inline=find_rate(probe, inline, length, start, least),
        relay=find_rate(probe, relay, length, start, least),
    )


def find_rate(probe: Probe, variant: str, length: int, start: float, least: float) -> Search:
    """The highest rate that passes: doubled until one fails, halved until one passes, bisected to 2 %.

    None below `least`.
    """
    tried: list[Outcome] = []

    def passes(rate: float) -> bool:
        tried.append(probe(variant, rate, length))
        return tried[-1].passes

    low, high = 0.0, 0.0
    rate = start
    while len(tried) < _MOST_PROBES:
        if passes(rate):
            low = rate
        else:
            high = rate
        if not high:
            rate = 2 * low
        elif not low:
            rate = high / 2
            if rate < least:
                break
        elif high <= low * (1 + RESOLUTION):
            break
        else:
            rate = (low + high) / 2
    return Search(best=low or None, probes=tuple(tried))


def find_length(probe: Probe, variant: str, rate: float, most: int) -> Search:
    """The longest history that passes at `rate`, in steps of 128 tokens; None if 128 do not."""
    tried: list[Outcome] = []

    def passes(steps: int) -> bool:
        tried.append(probe(variant, rate, steps * LENGTH_STEP))
        return tried[-1].passes

    low, high = 0, most // LENGTH_STEP + 1
    steps = min(BASE_LENGTH // LENGTH_STEP, high - 1)
    while high - low > 1:
        if passes(steps):
            low = steps
        else:
            high = steps
        steps = min(2 * low, high - 1) if high > most // LENGTH_STEP else (low + high) // 2
    return Search(best=low * LENGTH_STEP or None, probes=tuple(tried))


def _ratio(relay: Search | None, inline: Search | None) -> float | None:
    if relay is None or inline is None or relay.best is None or not inline.best:
        return None
    return relay.best / inline.best
