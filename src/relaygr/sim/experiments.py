"""E1 and E2 for both regimes and several rank budgets, and with many candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from relaygr.sim.lab import Lab
from relaygr.sim.protocol import Lengths, Rates, find_lengths, find_rates
from relaygr.sim.traffic import Regime

REGIMES: tuple[Regime, ...] = ("first_touch", "sessions")


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """E1 and E2 of one regime, rank budget and number of candidates.

    Attributes:
        rank_taus: the rank budget, in units of tau.
        rates: None where E1 found no length at which the baseline passes.
    """

    regime: str
    rank_taus: float
    candidates: int
    tau_ms: float
    lengths: Lengths
    rates: Rates | None

    @property
    def length(self) -> int | None:
        """L0."""
        return self.rates.length if self.rates is not None else None


def experiment(lab: Lab, regime: Regime, rank_taus: float, candidates: int = 128) -> Experiment:
    """Both searches; the rank budget replaces that of the lab's world."""
    tau_ms = 1000 * lab.world.tau_s
    budgets = replace(lab.world.budgets, b_rank_ms=rank_taus * tau_ms)
    mine = lab.other(
        world=msgspec.structs.replace(lab.world, budgets=budgets),
        traffic=msgspec.structs.replace(lab.traffic, regime=regime, candidates=candidates),
    )
    lengths = find_lengths(mine.probe, lab.world.tau_s)
    rates = None
    if lengths.q0 is not None and lengths.inline is not None and lengths.inline.best is not None:
        rates = find_rates(mine.probe, int(lengths.inline.best), 2 * lengths.q0)
    return Experiment(
        regime=regime,
        rank_taus=rank_taus,
        candidates=candidates,
        tau_ms=tau_ms,
        lengths=lengths,
        rates=rates,
    )


def experiments(lab: Lab, rank_taus: Sequence[float] = (2.0, 3.0)) -> list[Experiment]:
    """Both regimes at every budget, and each at the last with 2,048 candidates, where they dominate."""
    found = [experiment(lab, regime, taus) for taus in rank_taus for regime in REGIMES]
    return found + [experiment(lab, regime, rank_taus[-1], candidates=2048) for regime in REGIMES]
