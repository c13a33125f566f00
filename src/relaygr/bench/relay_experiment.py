"""E1 and E2 on real servers, each search starting from where the simulator's ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from relaygr.bench.edge import find_edge
from relaygr.bench.relay_loads import Loads, Order, seconds_of, traffic_of
from relaygr.bench.relay_point import Point, Trial
from relaygr.bench.relay_result import Confirmed, Found
from relaygr.bench.relay_steady import Steady
from relaygr.bench.relay_time import Allotment
from relaygr.bench.relay_wire import clock
from relaygr.sim.experiments import Experiment
from relaygr.sim.protocol import BASE_LENGTH, LENGTH_STEP, SHORTER_BASES, Lengths, Rates, Search
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import INLINE_FULL, RELAY_FULL, Variant

Progress = Callable[[str], None]

_FARTHEST = 48  # steps of a rate
_PATIENCE = 1.5  # shares of time that a search may take that has found nothing
_EXPECTED_TRIES = 3.5  # of full length, times votes: what fails clearly is given up early
_BEYOND = 0.5  # of a load, that may end after the time of its search
# Rates in sessions, real over simulated, were .34 to .61 for the relay and .16 to .82 for the baseline: the
# simulator does not know how noise meets a user's own earlier request. A search that starts above the edge
# may find nothing in its time; one that starts below it climbs.
_SESSIONS_PACE = 0.4
# Requests a tau up to which waits are spread evenly over their distribution. There the few rankings that are
# due nearest to one another decide an edge, and how many those are of 150 is a matter of the draws: seeds
# alone moved the simulated edge from 1,900 to 2,700 tokens inline, from 2,900 to 4,100 with the relay. Above,
# busy spells decide, whose law it would change.
_EVEN_TAUS = 0.2
_MOST_AGAIN = 2  # times that a load is run again
# Steps of a length to go up after an easy load. A few neighbours decide how long histories may be, and its
# percentiles do not tell that they come.
_LEAP = 2
# As `Effort.caution`, of the relay's length in sessions, which is searched for last: loads take long.
_SESSIONS_CAUTION = 0.95
# Where the search for the relay's rate starts, as a share of what is expected: near its edge everything is
# late in a slow second, and what has not passed once by the end of its time is no figure.
_RELAY_PACE = 0.65


@dataclass(frozen=True, slots=True)
class Case:
    """What is searched for once.

    Attributes:
        rank_taus: the ranking budget, in units of tau.
        traffic: regime and candidates; rate, length, requests and seed are filled in.
        weight: of its time.
    """

    rank_taus: float
    traffic: Traffic
    weight: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.traffic.regime}, {self.rank_taus:g} tau, {self.traffic.candidates} candidates"

    def parts(self) -> list[tuple[str, float]]:
        """Its searches in their order, with weights in time.

        The baseline's come first: what the relay reached says little beside a baseline that is not known.
        Loads for the relay's length are the slowest, as their rate is low, and come last.
        """
        bases = (("base", 1.5), *((f"base, {length}", 0.3) for length in (BASE_LENGTH, *SHORTER_BASES[:-1])))
        inline = (("inline length", 1.2), ("inline rate", 0.4))
        # In sessions the relay's first rate is many times the baseline's, and each of its loads takes long.
        rate = 0.6 if self.traffic.regime == "sessions" else 1.4
        every = (*bases, *inline, ("relay rate", rate), ("relay length", 2.8))
        return [(f"{self.name} {part}", self.weight * weight) for part, weight in every]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How thorough the searches are.

    Attributes:
        seeds: of a load.
        least, most: requests of a seed; between, as many as the time allows.
        least_length: for `least` in searches for a length, whose low rate makes loads slow.
        tries: loads of a search.
        votes: that each side of an edge must lead by; every run of a load has draws of its own, which are the
            same whatever is served.
        rate_step: ratio of neighbouring rates.
        caution: where a search starts, as a share of what is expected; that of the relay's length as a share
            of the way there from the baseline's. A failed load is time without a result, one that passes is
            one.
        longest: history, tokens.
        again: a load that fails is run once more, with the same draws, even if the machine is as fast as
            it was. What others do to it makes loads fail that would pass, and none pass that would fail.
    """

    seeds: tuple[int, ...]
    least: int
    most: int
    least_length: int
    tries: int
    rate_step: float
    caution: float
    longest: int
    votes: int = 1
    again: bool = False


class Confirming:
    """The searches of one regime and budget."""

    def __init__(
        self, loads: Loads, case: Case, effort: Effort, time: Allotment, steady: Steady, progress: Progress
    ) -> None:
        self._loads, self._case, self._base, self._effort = loads, case, case.traffic, effort
        self._time, self._steady, self._progress = time, steady, progress

    async def confirm(self, simulated: Experiment, pace: float = 1.0) -> Confirmed:
        """All searches, in the protocol's order.

        Args:
            pace: highest rates of real servers over simulated ones, as far as known; where to start.

        Raises:
            BackendError: a server does not work.
        """
        sim, limits = simulated, self._loads.limits
        base, base_length = await self._find_base(sim.lengths, pace)
        q0 = base.best / 2 if base.best is not None else None
        inline = relay = inline_rate = relay_rate = None
        length: int | None = None
        if q0 is not None:
            # What passes at twice the rate passes.
            inline = await self._length("inline length", INLINE_FULL, q0, sim.lengths.inline, base_length)
            length = int(inline.best) if inline.best is not None else None
            if length is not None:
                inline_rate, relay_rate = await self._rates(base, base_length, length, sim.rates, q0)
            sure = length if relay_rate is not None and (relay_rate.best or 0.0) >= q0 else None
            relay = await self._length("relay length", RELAY_FULL, q0, sim.lengths.relay, sure)
            if relay_rate is not None and relay_rate.best is None and (relay.best or 0) >= (length or 0):
                # What passes with a longer history passes.
                relay_rate = msgspec.structs.replace(relay_rate, best=q0)
        return Confirmed(
            regime=self._base.regime,
            rank_taus=self._case.rank_taus,
            candidates=self._base.candidates,
            limits=limits,
            q0=q0,
            length=length,
            base=base,
            base_length=base_length,
            inline_length=inline,
            relay_length=relay,
            inline_rate=inline_rate,
            relay_rate=relay_rate,
            simulated=simulated,
        )

    async def _find_base(self, simulated: Lengths, pace: float) -> tuple[Found, int]:
        """The highest rate of the baseline, and the length: shorter where it passes at none with 2,048."""
        known, start = simulated.base.best, 0.1 * 1000 / self._loads.limits.tau_ms
        part, lengths = "base", (BASE_LENGTH, *SHORTER_BASES)
        tried: tuple[Trial, ...] = ()
        first = pace * (known or start) * self._regime_pace
        for length in lengths:
            expected = known if length == simulated.base_length else None
            found = await self._rate(part, INLINE_FULL, length, first, expected)
            runs = tuple(len(tried) + place for place in found.runs)
            tried += found.trials
            if found.best is not None:
                break
            part = f"base, {length}"
        return msgspec.structs.replace(found, trials=tried, runs=runs), length

    @property
    def _regime_pace(self) -> float:
        """Where a search for a rate starts, as a share of the simulated one."""
        return _SESSIONS_PACE if self._base.regime == "sessions" else 1.0

    async def _rates(
        self,
        base: Found,
        base_length: int,
        length: int,
        simulated: Rates | None,
        sure: float,
    ) -> tuple[Found, Found]:
        """E2; with the base's length the baseline's rate is known already, and with any that it passes at
        `sure`.
        """
        assert base.best is not None
        inline = base
        if length != base_length:
            guess = base.best * (base_length / length) ** 2
            known = simulated.inline.best if simulated is not None else None
            inline = await self._rate("inline rate", INLINE_FULL, length, guess, known, sure)
        known = simulated.relay.best if simulated is not None else None
        # What even waits add to the baseline's rate they do not add to this one.
        pace = min(base.pace or self._regime_pace, 1.0)
        start = _RELAY_PACE * (pace * known if known is not None else 4 * base.best)
        relay = await self._rate("relay rate", RELAY_FULL, length, start, known)
        return inline, relay

    async def _rate(
        self,
        part: str,
        variant: Variant,
        length: int,
        start: float,
        simulated: float | None,
        known: float | None = None,
    ) -> Found:
        step, effort = self._effort.rate_step, self._effort
        start *= effort.caution
        share_s, each_s = self._share(part)
        runs: Counter[int] = Counter()
        _, load_s = self._requests(variant, start, length, each_s, effort.least)
        until, most = _until(share_s, load_s), _FARTHEST

        async def attempt(level: int) -> Trial:
            runs[level] += 1
            rate = start * step**level
            count, _ = self._requests(variant, rate, length, each_s, effort.least)
            return await self._try(variant, rate, length, count, runs[level], until)

        sure = None if known is None else math.floor(math.log(known / start, step) + 1e-9)
        edge = await find_edge(attempt, -most, most, effort.tries, until, sure, effort.votes)
        best = start * step**edge.level if edge.level is not None else None
        return Found.of(edge, best, simulated)

    async def _length(
        self, part: str, variant: Variant, rate: float, search: Search | None, known: int | None = None
    ) -> Found:
        simulated = search.best if search is not None else None
        expected, low = simulated or BASE_LENGTH, known or 0
        sessions = variant.relay and self._base.regime == "sessions"
        caution = max(self._effort.caution, _SESSIONS_CAUTION) if sessions else self._effort.caution
        cautious = round((low + caution * (expected - low)) / LENGTH_STEP)
        start = min(max(cautious, 1) * LENGTH_STEP, self._effort.longest)
        share_s, each_s = self._share(part)
        effort, runs = self._effort, Counter[int]()
        least, most = 1 - start // LENGTH_STEP, (self._effort.longest - start) // LENGTH_STEP
        _, load_s = self._requests(variant, rate, start, each_s, effort.least_length)
        until = _until(share_s, load_s)

        async def attempt(level: int) -> Trial:
            tokens = start + LENGTH_STEP * level
            runs[level] += 1
            count, _ = self._requests(variant, rate, tokens, each_s, effort.least_length)
            return await self._try(variant, rate, tokens, count, runs[level], until)

        sure = None if known is None else (known - start) // LENGTH_STEP
        edge = await find_edge(attempt, least, most, effort.tries, until, sure, effort.votes, _LEAP)
        best = start + LENGTH_STEP * edge.level if edge.level is not None else None
        return Found.of(edge, best, simulated)

    def _share(self, part: str) -> tuple[float, float]:
        """Seconds of a search and of one of its loads."""
        share_s = self._time.share_s(f"{self._case.name} {part}")
        return share_s, share_s / (_EXPECTED_TRIES * self._effort.votes)

    def _requests(
        self, variant: Variant, rate: float, length: int, seconds: float, least: int
    ) -> tuple[int, float]:
        """Of each seed of a load that is to take so many seconds, and how long it will take."""
        effort, limits = self._effort, self._loads.limits
        one = traffic_of(limits, self._base, rate, length, 1000, 0)
        each_s = seconds_of(limits, variant, one) / 1000 * len(effort.seeds)
        count = min(max(int(seconds / each_s), least), effort.most)
        return count, count * each_s

    async def _try(
        self, variant: Variant, rate: float, length: int, count: int, run: int, more: Callable[[bool], bool]
    ) -> Trial:
        """The `run`th run of a load, from 1 on.

        One that fails is run again, with the same draws, if the machine is slower than it was, and in any
        case if the effort says so; as long as there is time.
        """
        failed: list[Point] = []
        while True:
            trial = await self._run(variant, rate, length, count, run)
            trial = msgspec.structs.replace(trial, failed_before=tuple(failed))
            if trial.passes or len(failed) >= _MOST_AGAIN:
                return trial
            steady = await self._steady.holds()
            if steady and (failed or not self._effort.again):
                return trial
            if not steady:
                self._progress("the machine is slower than when tau was measured")
                await self._steady.wait()
            if not more(False):
                return trial
            failed += trial.points

    async def _run(self, variant: Variant, rate: float, length: int, count: int, run: int) -> Trial:
        effort, limits = self._effort, self._loads.limits
        trial = Trial(
            variant=variant.name,
            rate=rate,
            length=length,
            planned=len(effort.seeds),
            b_rank_ms=limits.b_rank_ms,
            points=(),
        )
        for first in effort.seeds:
            seed = first + (run - 1) * len(effort.seeds)
            self._progress(
                f"{self._case.name}, {variant.name}: {length:,} tokens at {rate:.3g}/s, {count} requests"
            )
            traffic = traffic_of(limits, self._base, rate, length, count, seed)
            even = rate * traffic.tau_s <= _EVEN_TAUS
            traffic = msgspec.structs.replace(traffic, even=even)
            point: Point = await self._loads.run(Order(variant=variant, traffic=traffic))
            trial = msgspec.structs.replace(trial, points=(*trial.points, point))
            if trial.outcome.hopeless:
                break
        self._progress(_said(self._case, trial, limits.b_rank_ms))
        return trial


def _until(share_s: float, load_s: float) -> Callable[[bool], bool]:
    """Whether there is time for one more load: for the share, and for longer while nothing has passed."""
    last_s = clock() - (1 - _BEYOND) * load_s
    return lambda found: clock() < last_s + (1.0 if found else _PATIENCE) * share_s


def _said(case: Case, trial: Trial, budget_ms: float) -> str:
    verdict = "passes" if trial.passes else "fails"
    return (
        f"{case.name}, {trial.variant}: {trial.length:,} tokens at {trial.rate:.3g}/s {verdict}, "
        f"{trial.good_share:.1%} of {trial.requests} good, P99 {trial.p99_ms:.0f} of {budget_ms:.0f} ms"
    )
