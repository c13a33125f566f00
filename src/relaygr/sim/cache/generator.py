"""A day of made-up requests: users who come in sessions, with histories that grow by a few events a time."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.core.errors import ConfigError
from relaygr.sim.cache.trace import Bools, Ints, Trace, peaks, windowed

Floats = npt.NDArray[np.float64]

MAX_USERS = 10_000_000
MAX_REQUESTS = 20_000_000

# A stream for each kind of draw, so that no draw moves those of another kind.
_RATES, _SESSIONS, _STARTS, _COUNTS, _GAPS, _LENGTHS, _GROWTH, _EDITS, _CHURN, _SCAN = range(10)


class TraceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace; equal values give equal requests, and switching a knob on leaves the draws of all others.

    Attributes:
        users: that there are; who has no session in this time does not come.
        hours: from the first request to the last at most.
        sessions_per_day: of a user, on average over all of them; each has a Poisson process.
        rate_sigma: rates of users are log-normal, with this standard deviation of their logarithm.
        zipf: if not 0, rates go by Zipf's law with this exponent instead.
        session_requests: mean of the geometric number of requests of a session.
        gap_s: mean of the exponential time between two requests of a session.
        first_length, first_sigma: median and standard deviation of the logarithm of the first length.
        max_length: histories stop growing there, unless `slide` moves a window over them.
        growth: fewest and most tokens that come between two requests of a user.
        scan: requests of users who come once, as a share of all other requests, on top of them.
        burst_factor, burst_share, burst_period_s: sessions start so many times as often as on average in this
            share of each period.
        churn: share of the users who are replaced for good, at some time of the trace, by a new one.
        edits: share of the later requests before which a token of the history was changed, anywhere in it.
        slide: steps in which the window moves once a history is longer, as a share of `max_length`.
    """

    users: int = 20_000
    hours: float = 24.0
    sessions_per_day: float = 3.0
    rate_sigma: float = 1.0
    zipf: float = 0.0
    session_requests: float = 6.0
    gap_s: float = 65.0
    first_length: float = 1200.0
    first_sigma: float = 0.9
    max_length: int = 8192
    growth: tuple[int, int] = (4, 19)
    scan: float = 0.0
    burst_factor: float = 1.0
    burst_share: float = 0.1
    burst_period_s: float = 3600.0
    churn: float = 0.0
    edits: float = 0.0
    slide: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, holds, wanted in self._rules():
            if not holds:
                raise ConfigError(f"trace.{name}", f"{value} must be {wanted}")

    def _rules(self) -> list[tuple[str, object, bool, str]]:
        expected = self.users * self.sessions_per_day * self.hours / 24 * self.session_requests
        expected *= 1 + self.scan
        return [
            ("users", self.users, 1 <= self.users <= MAX_USERS, f"in [1, {MAX_USERS}]"),
            ("hours", self.hours, 0 < self.hours <= 8784, "in (0, 8784]"),
            ("sessions_per_day", self.sessions_per_day, 0 < self.sessions_per_day <= 1e4, "in (0, 10000]"),
            ("rate_sigma", self.rate_sigma, 0 <= self.rate_sigma <= 5, "in [0, 5]"),
            ("zipf", self.zipf, 0 <= self.zipf <= 5, "in [0, 5]"),
            ("session_requests", self.session_requests, 1 <= self.session_requests <= 1e4, "in [1, 10000]"),
            ("gap_s", self.gap_s, 0 < self.gap_s <= 86_400, "in (0, 86400]"),
            ("first_length", self.first_length, 1 <= self.first_length <= 2**20, "in [1, 1048576]"),
            ("first_sigma", self.first_sigma, 0 <= self.first_sigma <= 5, "in [0, 5]"),
            ("max_length", self.max_length, 1 <= self.max_length <= 2**20, "in [1, 1048576]"),
            ("growth", self.growth, 0 <= self.growth[0] <= self.growth[1] <= 2**20, "(fewest, most)"),
            ("scan", self.scan, 0 <= self.scan <= 100, "in [0, 100]"),
            ("burst_factor", self.burst_factor, 1 <= self.burst_factor <= 1e4, "in [1, 10000]"),
            (
                "burst_share",
                self.burst_share,
                0 < self.burst_share * self.burst_factor <= 1,
                "in (0, 1 / burst_factor]",
            ),
            (
                "burst_period_s",
                self.burst_period_s,
                0 < self.burst_period_s <= 3600 * self.hours,
                "in (0, the length of the trace]",
            ),
            ("churn", self.churn, 0 <= self.churn <= 1, "in [0, 1]"),
            ("edits", self.edits, 0 <= self.edits <= 1, "in [0, 1]"),
            ("slide", self.slide, 0 <= self.slide <= 1, "in [0, 1]"),
            ("seed", self.seed, 0 <= self.seed < 2**63, "in [0, 2^63)"),
            (
                "users",
                f"{self.users} with {expected:.0f} requests",
                expected <= MAX_REQUESTS,
                f"few enough for {MAX_REQUESTS} requests",
            ),
        ]


def generate(spec: TraceSpec) -> Trace:
    """The requests of a trace.

    Raises:
        ConfigError: nobody comes.
    """
    draws = _Draws(spec.seed)
    time_s, user = _visits(spec, draws)
    if not len(time_s):
        raise ConfigError("trace.users", f"{spec.users}: none of them has a session in {spec.hours:g} hours")
    length, same = _histories(spec, draws, user)
    known, user = np.unique(user, return_inverse=True)
    users, base = len(known), int(peaks(user, length, len(known)).sum())
    once = int(spec.scan * len(time_s))
    if once:
        rng = draws.stream(_SCAN)
        time_s = np.concatenate([time_s, rng.uniform(0, 3600 * spec.hours, once)])
        user = np.concatenate([user, np.arange(users, users + once)])
        length = np.concatenate([length, _first_lengths(spec, rng, once)])
        same = np.concatenate([same, np.zeros(once, np.int64)])
    order = np.argsort(time_s, kind="stable")
    return Trace(
        name=f"generated, seed {spec.seed}{f', scan {spec.scan:g}' if spec.scan else ''}",
        time_ms=(1000 * time_s[order]).astype(np.int64),
        user=user[order],
        length=length[order],
        same=same[order],
        users=users + once,
        base_tokens=base,
    )


class _Draws:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, kind: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, kind))


def _visits(spec: TraceSpec, draws: _Draws) -> tuple[Floats, Ints]:
    """Times and users of all requests, ordered by user and, within one, by time."""
    end_s = 3600 * spec.hours
    sessions = draws.stream(_SESSIONS).poisson(_rates(spec, draws) * spec.hours / 24)
    owner = np.repeat(np.arange(spec.users), sessions)
    start_s = _bursts(spec, draws.stream(_STARTS).uniform(0, end_s, len(owner)))
    if spec.churn:
        rng = draws.stream(_CHURN)
        leaves = np.where(rng.random(spec.users) < spec.churn, rng.uniform(0, end_s, spec.users), end_s)
        owner = np.where(start_s < leaves[owner], owner, owner + spec.users)
    visits = draws.stream(_COUNTS).geometric(1 / spec.session_requests, len(owner))
    gaps = draws.stream(_GAPS).exponential(spec.gap_s, int(visits.sum()))
    opens = np.cumsum(visits) - visits
    gaps[opens] = 0.0
    passed = np.cumsum(gaps)
    # Sums over all sessions before have to go.
    time_s = np.repeat(start_s - passed[opens], visits) + passed
    user = np.repeat(owner, visits)
    inside = time_s < end_s
    time_s, user = time_s[inside], user[inside]
    order = np.lexsort((time_s, user))
    return time_s[order], user[order]


def _rates(spec: TraceSpec, draws: _Draws) -> Floats:
    """Sessions a day of each user; the law has the mean that was asked for, a sample of it is near."""
    rng = draws.stream(_RATES)
    if spec.zipf:
        weights = np.arange(1, spec.users + 1, dtype=np.float64) ** -spec.zipf
        rates: Floats = rng.permutation(weights) * (spec.sessions_per_day / weights.mean())
        return rates
    drawn = rng.lognormal(0.0, spec.rate_sigma, spec.users)
    return drawn * (spec.sessions_per_day / math.exp(spec.rate_sigma**2 / 2))


def _bursts(spec: TraceSpec, even_s: Floats) -> Floats:
    """The same starts in a time that runs faster during bursts."""
    if spec.burst_factor == 1:
        return even_s
    period, share = spec.burst_period_s, spec.burst_share
    inside = share * spec.burst_factor * period  # of the even time of a period
    whole, part = np.divmod(even_s, period)
    calm = (1 - share) * period / max(period - inside, math.ulp(period))
    late = share * period + (part - inside) * calm
    warped: Floats = whole * period + np.where(part < inside, part / spec.burst_factor, late)
    return np.minimum(warped, math.nextafter(3600 * spec.hours, 0))


def _histories(spec: TraceSpec, draws: _Draws, user: Ints) -> tuple[Ints, Ints]:
    """Length and unchanged part at each of the requests, which are ordered by user and time."""
    count = len(user)
    first = np.ones(count, np.bool_)
    first[1:] = user[1:] != user[:-1]
    low, high = spec.growth
    new = draws.stream(_GROWTH).integers(low, high + 1, count)
    # A length belongs to a user, not to a place among those who come.
    new[first] = _first_lengths(spec, draws.stream(_LENGTHS), 2 * spec.users)[user[first]]
    events = _sums(new, first)
    length, same = windowed(events, new, spec.max_length, round(spec.slide * spec.max_length))
    if spec.edits:
        rng = draws.stream(_EDITS)
        edited = rng.random(count) < spec.edits
        same = np.where(edited, (same * rng.random(count)).astype(np.int64), same)
    return length, same


def _sums(new: Ints, first: Bools) -> Ints:
    """Running sums that begin anew at each of the first."""
    passed = np.cumsum(new)
    begins = np.flatnonzero(first)
    before = passed[begins] - new[begins]
    sums: Ints = passed - np.repeat(before, np.diff(np.append(begins, len(new))))
    return sums


def _first_lengths(spec: TraceSpec, rng: np.random.Generator, count: int) -> Ints:
    drawn = rng.lognormal(math.log(spec.first_length), spec.first_sigma, count)
    return np.clip(drawn, 1, spec.max_length).astype(np.int64)
