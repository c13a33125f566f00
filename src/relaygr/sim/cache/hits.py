"""Three ratios of hits, by requests, tokens and cost, and the ceilings that first touches leave them."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.core.errors import ConfigError
from relaygr.sim.cache.trace import Bools, Ints, Trace

Floats = npt.NDArray[np.float64]
_Number = TypeVar("_Number", float, Floats)


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tokens cost, in milliseconds or in any unit: only ratios of costs are reported.

    Attributes:
        t1, t2: of a new token, and of its looking at one other or itself.
        t_load: of bringing a cached token to where it can be read; policies weigh it.
    """

    t1: float = 1.0
    t2: float = 1 / 4096
    t_load: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("t1", self.t1), ("t2", self.t2), ("t_load", self.t_load)):
            if not 0 <= value <= 1e9:
                raise ConfigError(f"costs.{name}", f"{value} must be in [0, 1e9]")
        if not self.t1 + self.t2:
            raise ConfigError("costs.t1", f"{self.t1} must be positive where t2 is {self.t2}")

    def new(self, tokens: _Number, cached: _Number) -> _Number:
        """Of so many new tokens after cached ones."""
        return self.t1 * tokens + self.t2 * (tokens * cached + tokens * (tokens + 1) / 2)


# Of a history of 8,192, the tokens and the pairs cost the same.
PLAIN_COSTS = Costs()


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    """Of some requests. All ratios are 0 where there is nothing to hit.

    Attributes:
        requests, tokens: that there were; `cost` of computing all of them.
        request_hit: share of the requests that reused anything.
        token_hit: share of the tokens that were reused.
        cost_hit: share of the cost that was saved.
    """

    requests: int
    tokens: int
    cost: float
    request_hit: float
    token_hit: float
    cost_hit: float


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Of requests after the warm-up: all of them, of users who come for the first time, and of all others."""

    all: Hits
    first: Hits
    returning: Hits


def split(trace: Trace, reused: Ints, costs: Costs, warmup: int) -> Split:
    """Hits of the requests from place `warmup` on, each of which reused so many tokens."""
    counted = np.arange(len(trace)) >= warmup
    first = trace.first
    return Split(
        all=hits(trace, reused, costs, counted),
        first=hits(trace, reused, costs, counted & first),
        returning=hits(trace, reused, costs, counted & ~first),
    )


def hits(trace: Trace, reused: Ints, costs: Costs, rows: Bools) -> Hits:
    """Hits of the requests in `rows`."""
    length, kept = trace.length[rows], reused[rows]
    tokens, known = length.astype(np.float64), kept.astype(np.float64)
    cost = float(costs.new(tokens, np.zeros_like(tokens)).sum())
    spent = float(costs.new(tokens - known, known).sum())
    return Hits(
        requests=len(length),
        tokens=int(length.sum()),
        cost=cost,
        request_hit=_ratio(int(np.count_nonzero(kept)), len(length)),
        token_hit=_ratio(int(kept.sum()), int(length.sum())),
        cost_hit=_ratio(cost - spent, cost),
    )


def ceiling(trace: Trace, costs: Costs, warmup: int = 0) -> Hits:
    """What a cache without limits would hit from place `warmup` on.

    Where users only add to their histories, it is 1 - users / requests of the requests, and of the tokens
    1 - (first lengths + growth) / lengths, each summed up.
    """
    return hits(trace, trace.same, costs, np.arange(len(trace)) >= warmup)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
