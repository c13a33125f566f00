"""What `bench relay --json` writes."""

from __future__ import annotations

from typing import Literal

import msgspec

from relaygr.bench.edge import Edge
from relaygr.bench.relay_point import Point, Trial
from relaygr.bench.relay_script import Limits
from relaygr.bench.relay_speed import Speed
from relaygr.sim.experiments import Experiment
from relaygr.sim.tally import Result

PAPER_LENGTH_RATIO, PAPER_RATE_RATIO = 1.5, 3.6
PAPER = "RelayGR (arXiv:2601.01712): up to, on Ascend NPUs with real queries; not measured here"

Bound = Literal["settled", "at least", "at most", "open"]
"""What a ratio of two edges is of the real one: edges that were not searched to their end are too low."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The edge of what passes on real servers, beside what the simulator found.

    Attributes:
        best, simulated: tokens, or requests a second; None if nothing passed.
        bracketed: whether it passes, and the next step above it fails, as often as was asked for; otherwise
            more may pass.
        runs: places in `trials` of those that the best rests on; none if it follows from another search.
    """

    best: float | None
    simulated: float | None
    bracketed: bool
    trials: tuple[Trial, ...]
    runs: tuple[int, ...]

    @classmethod
    def of(cls, edge: Edge[Trial], best: float | None, simulated: float | None) -> Found:
        return cls(
            best=best, simulated=simulated, bracketed=edge.bracketed, trials=edge.trials, runs=edge.runs
        )

    @property
    def pace(self) -> float | None:
        """The best over the simulated one."""
        return self.best / self.simulated if self.best and self.simulated else None

    @property
    def trial(self) -> Trial | None:
        """That of the best; of several, the one with the median P99."""
        runs = sorted((self.trials[place] for place in self.runs), key=lambda trial: trial.p99_ms)
        return runs[len(runs) // 2] if runs else None


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """E1 and E2 of one regime and ranking budget.

    Attributes:
        base: highest rate of `inline_full` with `base_length` tokens, 2,048 unless it passes at none with so
            many; q0 is half of it, and None if there is none.
        inline_length, relay_length: E1, at q0. inline_rate, relay_rate: E2, at `length` tokens, that of E1's
            `inline_full`. None where the one before found nothing.
        simulated: the same searches, all of them on the simulator.
    """

    regime: str
    rank_taus: float
    candidates: int
    limits: Limits
    q0: float | None
    length: int | None
    base: Found
    base_length: int
    inline_length: Found | None
    relay_length: Found | None
    inline_rate: Found | None
    relay_rate: Found | None
    simulated: Experiment

    @property
    def trials(self) -> list[Trial]:
        """All loads that were tried."""
        own = [self.base, self.inline_length, self.relay_length, self.relay_rate]
        if self.inline_rate is not self.base:
            own.append(self.inline_rate)
        return [trial for found in own if found is not None for trial in found.trials]

    @property
    def length_ratio(self) -> float | None:
        return _ratio(self.relay_length, self.inline_length)

    @property
    def rate_ratio(self) -> float | None:
        return _ratio(self.relay_rate, self.inline_rate)

    @property
    def length_ratio_bound(self) -> Bound | None:
        """None without a ratio."""
        return _bound(self.relay_length, self.inline_length)

    @property
    def rate_ratio_bound(self) -> Bound | None:
        return _bound(self.relay_rate, self.inline_rate)

    @property
    def length_ratio_simulated(self) -> float | None:
        return self.simulated.lengths.ratio

    @property
    def rate_ratio_simulated(self) -> float | None:
        return self.simulated.rates.ratio if self.simulated.rates is not None else None

    @property
    def p99_over_budget(self) -> float | None:
        """The larger P99 of the relay at its two edges, over the ranking budget."""
        trials = [found.trial for found in (self.relay_length, self.relay_rate) if found is not None]
        known = [trial.p99_ms / self.limits.b_rank_ms for trial in trials if trial is not None]
        return max(known, default=None)

    @property
    def p99_over_budget_simulated(self) -> float | None:
        searches = [
            self.simulated.lengths.relay,
            self.simulated.rates.relay if self.simulated.rates is not None else None,
        ]
        passed = [
            [probe for probe in search.probes if probe.passes][-1]
            for search in searches
            if search is not None and search.best is not None
        ]
        budget_ms = self.rank_taus * self.simulated.tau_ms
        return max((max(s.p99_ms for s in probe.shares) / budget_ms for probe in passed), default=None)


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """One variant under the load of all: real seeds, and simulations of the same; no points where there is no
    real way to serve it.
    """

    variant: str
    regime: str
    rate: float
    length: int
    servers: int
    points: tuple[Point, ...]
    simulated: tuple[Result, ...]


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """Real servers against the simulator on the same requests: medians over the seeds.

    Attributes:
        p50_error, hit_error, admitted_error: simulated over real, minus 1.
    """

    regime: str
    rate: float
    length: int
    servers: int
    seeds: int
    p50_ms: float
    p50_ms_simulated: float
    p99_ms: float
    p99_ms_simulated: float
    hit_share: float
    hit_share_simulated: float
    admitted_share: float
    admitted_share_simulated: float
    good_share: float
    good_share_simulated: float
    points: tuple[Point, ...]

    @property
    def p50_error(self) -> float:
        return self.p50_ms_simulated / self.p50_ms - 1 if self.p50_ms else 0.0


class RelayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench relay --json` writes.

    Attributes:
        length_ratio, rate_ratio: of users who come once, at a ranking budget of 2 tau: longest history at one
            rate, and highest rate at one length, of the relay over `inline_full`. The next two: of users who
            come back. Each with what it is of the real ratio, and with what the simulator says; None where
            the baseline never passed.
        relay_p99_over_budget: the largest P99 of the relay at these four edges, over its budget.
        paper_length_ratio, paper_rate_ratio: claimed by the paper, see `paper`.
        load_before: mean number of programs that ran or wanted to in the minute before; with more than a
            few tenths, times are others' as much as the servers'. None where the system does not tell.
        waited_s: for the machine to be as fast as when tau was measured, after loads that failed.
        settings: of the relay's servers.
    """

    length_ratio: float | None
    length_ratio_bound: Bound | None
    length_ratio_simulated: float | None
    rate_ratio: float | None
    rate_ratio_bound: Bound | None
    rate_ratio_simulated: float | None
    sessions_length_ratio: float | None
    sessions_length_ratio_bound: Bound | None
    sessions_length_ratio_simulated: float | None
    sessions_rate_ratio: float | None
    sessions_rate_ratio_bound: Bound | None
    sessions_rate_ratio_simulated: float | None
    relay_p99_over_budget: float | None
    relay_p99_over_budget_simulated: float | None
    paper_length_ratio: float
    paper_rate_ratio: float
    paper: str
    quick: bool
    preset: str
    dtype: str
    cpu: str
    cores: int
    seeds: tuple[int, ...]
    seconds: float
    load_before: float | None
    waited_s: float
    speed: Speed
    settings: tuple[str, ...]
    notes: tuple[str, ...]
    experiments: tuple[Confirmed, ...]
    ablations: tuple[Ablation, ...] = ()
    twins: tuple[Twin, ...] = ()


def _ratio(relay: Found | None, inline: Found | None) -> float | None:
    if relay is None or inline is None or relay.best is None or not inline.best:
        return None
    return relay.best / inline.best


def _bound(relay: Found | None, inline: Found | None) -> Bound | None:
    if _ratio(relay, inline) is None or relay is None or inline is None:
        return None
    if inline.bracketed:
        return "settled" if relay.bracketed else "at least"
    return "at most" if relay.bracketed else "open"
