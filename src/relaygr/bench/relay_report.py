"""Puts together what `bench relay` found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.relay_ground import Ground
from relaygr.bench.relay_result import (
    PAPER,
    PAPER_LENGTH_RATIO,
    PAPER_RATE_RATIO,
    Ablation,
    Bound,
    Confirmed,
    Found,
    RelayReport,
    Twin,
)
from relaygr.bench.relay_spec import RANK_TAUS, RelaySpec
from relaygr.relay.budgets import TAU_CANDIDATES
from relaygr.sim.protocol import BASE_LENGTH
from relaygr.sim.variants import RELAY_FULL

_BUSY = 0.5  # programs that run beside the benchmark


class _Ratios(NamedTuple):
    """Of one regime, real and simulated; None where nothing was found."""

    length: float | None = None
    length_bound: Bound | None = None
    length_simulated: float | None = None
    rate: float | None = None
    rate_bound: Bound | None = None
    rate_simulated: float | None = None

    @classmethod
    def of(cls, found: Iterable[Confirmed], regime: str) -> _Ratios:
        for one in found:
            if one.regime == regime:
                return cls(
                    one.length_ratio,
                    one.length_ratio_bound,
                    one.length_ratio_simulated,
                    one.rate_ratio,
                    one.rate_ratio_bound,
                    one.rate_ratio_simulated,
                )
        return cls()


def report(
    spec: RelaySpec,
    ground: Ground,
    found: Sequence[Confirmed],
    ablations: Sequence[Ablation],
    twins: Sequence[Twin],
    seconds: float,
    load_before: float | None = None,
    waited_s: float = 0.0,
) -> RelayReport:
    """Everything that was found, the headline from the first two experiments."""
    headline = [one for one in found if one.rank_taus == RANK_TAUS and one.candidates == TAU_CANDIDATES]
    once, again = (_Ratios.of(headline, regime) for regime in ("first_touch", "sessions"))
    return RelayReport(
        length_ratio=once.length,
        length_ratio_bound=once.length_bound,
        length_ratio_simulated=once.length_simulated,
        rate_ratio=once.rate,
        rate_ratio_bound=once.rate_bound,
        rate_ratio_simulated=once.rate_simulated,
        sessions_length_ratio=again.length,
        sessions_length_ratio_bound=again.length_bound,
        sessions_length_ratio_simulated=again.length_simulated,
        sessions_rate_ratio=again.rate,
        sessions_rate_ratio_bound=again.rate_bound,
        sessions_rate_ratio_simulated=again.rate_simulated,
        relay_p99_over_budget=_most(one.p99_over_budget for one in headline),
        relay_p99_over_budget_simulated=_most(one.p99_over_budget_simulated for one in headline),
        paper_length_ratio=PAPER_LENGTH_RATIO,
        paper_rate_ratio=PAPER_RATE_RATIO,
        paper=PAPER,
        quick=spec.quick,
        preset=spec.preset,
        dtype=ground.dtype,
        cpu=cpu_model(),
        cores=usable_cores(),
        seeds=spec.seeds,
        seconds=round(seconds, 1),
        load_before=load_before,
        waited_s=round(waited_s, 1),
        speed=ground.speed,
        settings=ground.site(RANK_TAUS).of(RELAY_FULL),
        notes=_notes(found, load_before, waited_s),
        experiments=tuple(found),
        ablations=tuple(ablations),
        twins=tuple(twins),
    )


def _notes(found: Sequence[Confirmed], load_before: float | None, waited_s: float) -> tuple[str, ...]:
    """What a reader has to know to believe the numbers."""
    notes = ["the histories of a load's users are in the servers' memory before it begins"]
    if load_before is not None and load_before > _BUSY:
        notes.append(
            f"the machine was not quiet before, load {load_before:.1f}: the figures are others' work, too"
        )
    if found:
        notes.append(
            "searches leave out time in which no request is between its trigger and its answer, for the "
            "relay all but 2 tau of it"
        )
    again = sum(len(trial.failed_before) for one in found for trial in one.trials)
    if again:
        notes.append(
            f"{again} loads that failed were run again with the same draws, after {waited_s:.0f} s in all in "
            f"which the machine was slower than when tau was measured"
        )
    for one in found:
        where = f"{one.regime}, {one.rank_taus:g} tau, {one.candidates} candidates"
        if one.base.best is None:
            notes.append(f"{where}: baseline infeasible")
        elif one.base_length != BASE_LENGTH:
            notes.append(
                f"{where}: the baseline passes at no rate with {BASE_LENGTH:,} tokens; q0 is half of its "
                f"highest rate with {one.base_length:,}"
            )
        for name in ("base", "inline_length", "relay_length", "inline_rate", "relay_rate"):
            search: Found | None = getattr(one, name)
            if search is not None and search.best is not None and not search.bracketed:
                how = "" if search.runs else ", which follows from another search"
                notes.append(
                    f"{where}: {name} was not searched to its end{how}; it is a lower bound, more may pass"
                )
    return tuple(notes)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
