"""Load or recompute: how much of what a lower tier has of a user is copied, and how much computed anew.

A copy is not always the quicker way: the link may be queued, the file cold, the processor fast. So each
request is decided by itself, from measured speeds, and both ends and what lies between are weighed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from relaygr.cache.speeds import ComputeCost, CopyCost, MeasuredCompute, MeasuredLink


class Way(StrEnum):
    """What is done with tokens that a lower tier has."""

    DEVICE = "device"  # nothing: it has no more than the device
    LOAD = "load"  # all are copied
    SPLIT = "split"  # the first ones are copied, the others computed meanwhile
    RECOMPUTE = "recompute"  # none is copied


@dataclass(frozen=True, slots=True)
class Found:
    """One request, and what the tiers have of its prefix.

    Attributes:
        tokens: history tokens of the request.
        device, host: tokens at their head that the device has, and that the host has; neither is more.
        candidates: scored behind them.
        token_bytes: that a copy of one token moves.
        page_tokens: splits are at whole pages.
        runs: stretches in which the host has them.
    """

    tokens: int
    device: int
    host: int
    candidates: int
    token_bytes: int
    page_tokens: int
    runs: int = 1

    def copied(self, x: int) -> tuple[int, int]:
        """(bytes, runs) to copy so that the first `x` tokens are on the device."""
        missing = max(x - self.device, 0)
        if not missing:
            return 0, 0
        return missing * self.token_bytes, -(-self.runs * missing // (self.host - self.device))


class Choice(NamedTuple):
    """What is to be reused, and why.

    Attributes:
        tokens: to have on the device before the others are computed: what it has, or more.
        load_ms, compute_ms: what that copies and leaves to compute; total_ms: both, as far as they overlap.
    """

    way: Way
    tokens: int
    load_ms: float
    compute_ms: float
    total_ms: float


def time_of(
    x: int, found: Found, link: CopyCost, compute: ComputeCost, queue_ms: float, layers: int
) -> Choice:
    """T(x) = queue (if anything is copied) + max(load, w) + min(load, w) / layers.

    With one layer nothing overlaps, and the two add up.
    """
    nbytes, runs = found.copied(x)
    load = link.copy_ms(nbytes, runs) if nbytes else 0.0
    work = compute.pass_ms(found.tokens - x, x, found.candidates)
    total = (queue_ms if nbytes else 0.0) + max(load, work) + min(load, work) / layers
    return Choice(_way(x, found), x, load, work, total)


def pick(
    found: Found,
    link: CopyCost,
    compute: ComputeCost,
    *,
    queue_ms: float = 0.0,
    layers: int = 1,
    deadline_ms: float = math.inf,
) -> Choice:
    """The quickest of: what the device has, all that the host has, the split where both take equally long.

    Between these T is concave on either side of the split, so that nothing else is quicker while a byte
    costs the same at every size. Copies that would not end before the deadline are not made. Of equal times
    the one that copies less.

    Args:
        queue_ms: until the link is free.
        layers: whose copies run beside the computation of the layers before; 1 where copies end first.

    Raises:
        ValueError: less than one layer.
    """
    if layers < 1:
        raise ValueError(f"layers: {layers} must be at least 1")
    best = time_of(found.device, found, link, compute, queue_ms, layers)
    if found.host <= found.device:
        return best
    candidates = [found.host]
    if layers > 1:
        candidates += _splits(found, link, compute)
    for x in sorted(candidates):
        choice = time_of(x, found, link, compute, queue_ms, layers)
        if choice.total_ms < best.total_ms and queue_ms + choice.load_ms <= deadline_ms:
            best = choice
    return best


def _splits(found: Found, link: CopyCost, compute: ComputeCost) -> list[int]:
    """The page ends on both sides of where copying takes as long as computing the rest."""
    size = found.page_tokens
    pages = range(found.device // size + 1, -(-found.host // size))
    if not pages:
        return []

    def copying_longer(page: int) -> bool:
        x = page * size
        return link.copy_ms(*found.copied(x)) >= compute.pass_ms(found.tokens - x, x, found.candidates)

    place = bisect_left(pages, True, key=copying_longer)
    return [pages[at] * size for at in (place - 1, place) if 0 <= at < len(pages)]


def _way(x: int, found: Found) -> Way:
    if found.host <= found.device:
        return Way.DEVICE
    if x <= found.device:
        return Way.RECOMPUTE
    return Way.LOAD if x == found.host else Way.SPLIT


class Chooser:
    """`pick` with speeds of its own, which it learns from what was done.

    Until a pass was measured everything is loaded. Not for several threads.

    Attributes:
        layers: as of `pick`.
        decisions: by way, since the start or `count_anew`.
    """

    def __init__(
        self, link: MeasuredLink, compute: MeasuredCompute, layers: int = 1, measured: bool = True
    ) -> None:
        """With `measured` False all that is there is loaded, if it can be there by the deadline."""
        self.link, self.compute, self.layers = link, compute, layers
        self._measured = measured
        self.decisions = dict.fromkeys(Way, 0)

    def choose(self, found: Found, queue_ms: float = 0.0, deadline_ms: float = math.inf) -> Choice:
        """Decide and count."""
        if self._measured and self.compute.known:
            choice = pick(
                found,
                self.link,
                self.compute,
                queue_ms=queue_ms,
                layers=self.layers,
                deadline_ms=deadline_ms,
            )
        else:
            choice = self._untried(found, queue_ms, deadline_ms)
        self.decisions[choice.way] += 1
        if choice.way is Way.RECOMPUTE:
            # A link that is never used is never measured again.
            self.link.relax(found.copied(found.host)[0])
        return choice

    def count_anew(self) -> None:
        """Nothing was decided so far; what was learnt stays."""
        self.decisions = dict.fromkeys(Way, 0)

    def _untried(self, found: Found, queue_ms: float, deadline_ms: float) -> Choice:
        nbytes, runs = found.copied(found.host)
        load = self.link.copy_ms(nbytes, runs) if nbytes else 0.0
        loads = bool(nbytes) and queue_ms + load <= deadline_ms
        x = found.host if loads else found.device
        wait = queue_ms + load if loads else 0.0
        return Choice(_way(x, found), x, load if loads else 0.0, 0.0, wait)
