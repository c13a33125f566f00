"""What a load is made of: who comes, how often, with how long a history, and how far ahead of ranking."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from relaygr.core.errors import ConfigError

Regime = Literal["first_touch", "sessions", "popular"]

MAX_REQUESTS = 10_000_000


class Bursts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A square wave on top of the mean rate, which stays what it is.

    Attributes:
        factor: the rate inside a burst over the mean rate; 1 is no bursts.
        share: of the time that is inside a burst.
        period_taus: from the beginning of a burst to that of the next.
    """

    factor: float = 1.0
    share: float = 0.1
    period_taus: float = 200.0


class Leads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From the trigger to ranking: log-normal by two quantiles, and never longer than `most_taus`."""

    p10_taus: float = 2.0
    p50_taus: float = 3.0
    most_taus: float = 5.0


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load; equal values give equal requests, and the draws depend on `seed` and `regime` alone.

    Attributes:
        regime: `first_touch` meets each user once. `sessions` has users come `session_requests` times on
            average, and then no more unless `users` says that there are only so many. `popular` draws every
            request's user by Zipf's law.
        rate: requests a second.
        requests: how many count. `warmup` come before them and do not; sessions are warmed up for
            `warmup_taus` in addition.
        tau_s: the machine's own clock, in which gaps and leads are.
        length: history tokens. All equal if `spread` is 0, and then a user who comes again ends with this
            length; otherwise the first length is log-normal around it, with the standard deviation `spread`
            of its logarithm.
        least_length, most_length: between these; histories stop growing there.
        short_share, short_length: users with a short history of normal traffic among the others.
        growth: fewest and most events between two requests of a user.
        users: of `popular`, and of `sessions` if not 0.
        zipf: exponent of the popularity.
        even: waits between requests are spread evenly over their distribution, in any 100 in a row, as leads
            always are. A short load at a low rate then meets as many near neighbours as a long one. Queues at
            high loads, which long busy spells make, are 7 % shorter at .7 of capacity.
    """

    regime: Regime = "first_touch"
    rate: float = 10.0
    requests: int = 2000
    warmup: int = 100
    warmup_taus: float = 500.0
    tau_s: float = 0.05
    length: int = 2048
    spread: float = 0.0
    least_length: int = 1
    most_length: int = 1 << 20
    short_share: float = 0.0
    short_length: int = 256
    candidates: int = 128
    leads: Leads = Leads()
    gap_taus: float = 20.0
    session_requests: float = 6.0
    growth: tuple[int, int] = (4, 19)
    users: int = 0
    zipf: float = 1.0
    even: bool = False
    bursts: Bursts = Bursts()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, holds, wanted in self._rules():
            if not holds:
                raise ConfigError(f"traffic.{name}", f"{value} must be {wanted}")

    def _rules(self) -> list[tuple[str, object, bool, str]]:
        leads, bursts = self.leads, self.bursts
        return [
            ("rate", self.rate, 0 < self.rate < math.inf, "positive"),
            ("requests", self.requests, 1 <= self.requests <= MAX_REQUESTS, f"in [1, {MAX_REQUESTS}]"),
            ("warmup", self.warmup, 0 <= self.warmup <= MAX_REQUESTS, f"in [0, {MAX_REQUESTS}]"),
            ("warmup_taus", self.warmup_taus, 0 <= self.warmup_taus <= 1e6, "in [0, 1e6]"),
            ("tau_s", self.tau_s, 0 < self.tau_s < math.inf, "positive"),
            ("length", self.length, 0 <= self.length <= self.most_length, f"in [0, {self.most_length}]"),
            ("spread", self.spread, 0 <= self.spread <= 10, "in [0, 10]"),
            ("short_share", self.short_share, 0 <= self.short_share <= 1, "in [0, 1]"),
            ("candidates", self.candidates, self.candidates >= 1, "at least 1"),
            ("leads", leads, 0 < leads.p10_taus < leads.p50_taus <= leads.most_taus, "p10 < p50 <= most"),
            ("session_requests", self.session_requests, self.session_requests >= 1, "at least 1"),
            ("growth", self.growth, 0 <= self.growth[0] <= self.growth[1], "(fewest, most)"),
            ("users", self.users, self.users >= (self.regime == "popular"), "at least 1 for this regime"),
            ("bursts.factor", bursts.factor, bursts.factor >= 1, "at least 1"),
            ("bursts.share", bursts.share, 0 < bursts.share * bursts.factor <= 1, "in (0, 1 / factor]"),
        ]
