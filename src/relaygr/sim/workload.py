"""The requests of a load, drawn once and the same for every variant, rate and length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relaygr.sim.traffic import Traffic

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_P10 = -1.2815515655446004  # of the standard normal distribution
# A stream for each kind of draw, so that no draw moves those of another kind.
_ARRIVALS, _LEADS, _LENGTHS, _GROWTH, _USERS, _COUNTS, _GAPS, _SHORT, _SHARES = range(9)
_BLOCK = 100  # draws in a row that are spread evenly over their distribution


class Request(NamedTuple):
    """One visit of a user.

    Attributes:
        time_s: of the trigger, from the beginning; ranking is due `lead_s` later.
        before: history tokens at the user's visit before this one; of a first visit, all of them.
        new: tokens that came since.
        first: whether it is the user's first visit.
        counted: False in the warm-up.
    """

    time_s: float
    user: int
    before: int
    new: int
    candidates: int
    lead_s: float
    first: bool
    counted: bool

    @property
    def tokens(self) -> int:
        return self.before + self.new


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests as columns, in order of time; the names are those of `Request`."""

    time_s: Floats
    user: Ints
    before: Ints
    new: Ints
    lead_s: Floats
    first: npt.NDArray[np.bool_]
    counted: npt.NDArray[np.bool_]
    candidates: int

    def __len__(self) -> int:
        return len(self.time_s)

    def __iter__(self) -> Iterator[Request]:
        columns = (self.time_s, self.user, self.before, self.new, self.lead_s, self.first, self.counted)
        for time_s, user, before, new, lead_s, first, counted in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield Request(time_s, user, before, new, self.candidates, lead_s, first, counted)


def generate(traffic: Traffic) -> Workload:
    """The requests of a load."""
    draws = _Draws(traffic.seed)
    visits = _sessions(traffic, draws) if traffic.regime == "sessions" else _singles(traffic, draws)
    before, new, first = _histories(traffic, draws, visits.user)
    part = slice(0, visits.start + traffic.requests)
    time_s = visits.time_s[part]
    return Workload(
        time_s=time_s,
        user=visits.user[part],
        before=before[part],
        new=new[part],
        lead_s=visits.lead_s[part],
        first=first[part],
        counted=np.arange(len(time_s)) >= visits.start,
        candidates=traffic.candidates,
    )


class _Visits(NamedTuple):
    """Columns in order of time; the first `start` are warm-up."""

    time_s: Floats
    user: Ints
    lead_s: Floats
    start: int


class _Draws:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, kind: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, kind))


def _arrivals(traffic: Traffic, draws: _Draws, count: int, rate: float, exact: int) -> Floats:
    """Poisson arrivals of which the first `exact` have the rate exactly, since searches go by it.

    Bursts are the same arrivals in a time that runs faster.
    """
    even = np.cumsum(_waits(traffic, draws.stream(_ARRIVALS), count))
    even *= exact / rate / even[exact - 1]
    bursts = traffic.bursts
    if bursts.factor == 1:
        return even
    period = bursts.period_taus * traffic.tau_s
    inside = bursts.share * bursts.factor * period  # of the even time of a period
    whole, part = np.divmod(even, period)
    calm = (1 - bursts.share) * period / max(period - inside, math.ulp(period))
    late = bursts.share * period + (part - inside) * calm
    return whole * period + np.where(part < inside, part / bursts.factor, late)


def _popular(traffic: Traffic, draws: _Draws, count: int) -> Ints:
    weights = np.arange(1, traffic.users + 1, dtype=np.float64) ** -traffic.zipf
    return _weighted(draws.stream(_USERS), weights, count)


def _weighted(rng: np.random.Generator, weights: Floats, count: int) -> Ints:
    edges = np.cumsum(weights)
    found = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
    within: Ints = np.minimum(found, len(weights) - 1).astype(np.int64)
    return within


def _singles(traffic: Traffic, draws: _Draws) -> _Visits:
    total = traffic.warmup + traffic.requests
    time_s = _arrivals(traffic, draws, total, traffic.rate, total)
    lead_s = _leads(traffic, draws, total)
    if traffic.even:
        # What is spread evenly are the waits until the next ranking is due.
        time_s -= lead_s
        time_s -= min(float(time_s.min()), 0.0)
        order = np.argsort(time_s, kind="stable")
        time_s, lead_s = time_s[order], lead_s[order]
    user = np.arange(total) if traffic.regime == "first_touch" else _popular(traffic, draws, total)
    return _Visits(time_s, user, lead_s, traffic.warmup)


def _sessions(traffic: Traffic, draws: _Draws) -> _Visits:
    warm_s = traffic.warmup_taus * traffic.tau_s
    wanted = (warm_s * traffic.rate + traffic.warmup + traffic.requests) / traffic.session_requests
    count = int(1.2 * wanted + 8 * math.sqrt(wanted) + 64)
    visits = draws.stream(_COUNTS).geometric(1 / traffic.session_requests, count)
    # By the mean of these sessions: that of a few hundred is several percent off the mean of all.
    exact = math.ceil(wanted)
    rate = traffic.rate / float(visits[:exact].mean())
    start_s = _arrivals(traffic, draws, count, rate, exact)
    gaps = traffic.gap_taus * traffic.tau_s * _waits(traffic, draws.stream(_GAPS), int(visits.sum()))
    opens = np.cumsum(visits) - visits
    gaps[opens] = 0.0
    passed = np.cumsum(gaps)
    # Sums over all sessions before have to go, without losing the digits of short gaps.
    time_s = np.repeat(start_s - passed[opens], visits) + passed
    if traffic.users:
        weights = draws.stream(_USERS).lognormal(0.0, 1.0, traffic.users)
        session_user = _weighted(draws.stream(_SHORT + 1), weights, count)
    else:
        session_user = np.arange(count)
    order = np.argsort(time_s, kind="stable")
    time_s, user = time_s[order], np.repeat(session_user, visits)[order]
    start = int(np.searchsorted(time_s, warm_s)) + traffic.warmup
    return _Visits(time_s, user, _leads(traffic, draws, len(time_s)), start)


def _histories(traffic: Traffic, draws: _Draws, user: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Tokens before and new tokens of every visit, and whether it is the user's first."""
    count, users = len(user), int(user.max()) + 1
    order = np.argsort(user, kind="stable")  # the visits of a user side by side, in order of time
    mine = user[order]
    first = np.ones(count, np.bool_)
    first[1:] = mine[1:] != mine[:-1]
    low, high = traffic.growth
    grown = draws.stream(_GROWTH).integers(low, high + 1, count)[order]
    grown[first] = 0
    passed = np.cumsum(grown)
    begins = np.flatnonzero(first)
    spans = np.diff(np.append(begins, count))
    since_first = passed - np.repeat(passed[begins], spans)
    base, cap = _first_lengths(traffic, draws, users, mine[begins], since_first[begins + spans - 1])
    total = np.minimum(np.repeat(base, spans) + since_first, np.repeat(cap, spans))
    before = np.empty_like(total)
    before[1:] = total[:-1]
    before[first] = total[first]
    back = np.empty(count, np.int64)
    back[order] = np.arange(count)
    return before[back], (total - before)[back], first[back]


def _first_lengths(traffic: Traffic, draws: _Draws, users: int, who: Ints, growth: Ints) -> tuple[Ints, Ints]:
    """First lengths of the users `who`, who grow by `growth` in all; and where each stops growing."""
    if traffic.spread:
        drawn = traffic.length * np.exp(traffic.spread * draws.stream(_LENGTHS).standard_normal(users))
        base = np.clip(drawn, traffic.least_length, traffic.most_length).astype(np.int64)[who]
        cap = np.full(len(who), traffic.most_length)
    else:
        # Who grows past it stays there, with a first length of half of it.
        base = np.maximum(traffic.length - growth, traffic.length - traffic.length // 2)
        cap = np.full(len(who), traffic.length)
    if traffic.short_share:
        short = draws.stream(_SHORT).random(users)[who] < traffic.short_share
        base = np.where(short, traffic.short_length, base)
        cap = np.where(short, traffic.short_length, cap)
    return base, cap


def _leads(traffic: Traffic, draws: _Draws, count: int) -> Floats:
    leads = traffic.leads
    share = _even(draws.stream(_LEADS), draws.stream(_SHARES), count)
    spread = math.log(leads.p10_taus / leads.p50_taus) / _P10
    drawn = leads.p50_taus * np.exp(spread * _normal_quantile(share))
    return np.minimum(drawn, leads.most_taus) * traffic.tau_s


def _waits(traffic: Traffic, rng: np.random.Generator, count: int) -> Floats:
    """Exponentially distributed, with mean 1."""
    if traffic.even:
        return -np.log1p(-_even(rng, rng, count))
    return rng.exponential(size=count)


def _even(orders: np.random.Generator, places: np.random.Generator, count: int) -> Floats:
    """In [0, 1): of every `_BLOCK` in a row one is in each equal part of it."""
    blocks = -(-count // _BLOCK)
    order = orders.random((blocks, _BLOCK)).argsort(axis=1)
    return (order + places.random((blocks, _BLOCK))).ravel()[:count] / _BLOCK


def _normal_quantile(share: Floats) -> Floats:
    """Of the standard normal distribution, to 1e-5; what is beyond a share of 1e-9 counts as that."""
    grid, values = _quantiles()
    clipped = np.clip(share, 1e-9, 1 - 1e-9)
    return np.interp(np.log(clipped / (1 - clipped)), grid, values)


@cache
def _quantiles() -> tuple[Floats, Floats]:
    """Quantiles at even log odds, between which they are nearly straight."""
    grid = np.linspace(-21, 21, 4201)
    exact = NormalDist()
    return grid, np.array([exact.inv_cdf(1 / (1 + math.exp(-odds))) for odds in grid.tolist()])
