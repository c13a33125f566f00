"""What `bench relay` is asked for, and what follows: what is searched for, and how thoroughly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from relaygr.bench.relay_experiment import Case, Effort
from relaygr.bench.relay_ground import LONGEST
from relaygr.core.errors import ConfigError
from relaygr.models.presets import preset
from relaygr.relay.budgets import TAU_CANDIDATES
from relaygr.sim.traffic import Traffic

RANK_TAUS, MORE_TAUS = 2.0, 3.0
# With many candidates a full pass alone takes about 3 tau.
_MANY_TAUS = 5.0
_WARMUP = 30
_MANY_CANDIDATES = 2048
_MOST_MINUTES = 24 * 60.0
_CONFIRMED_MINUTES = 8.0
_LONGEST = LONGEST - 512  # users in sessions grow


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySpec:
    """What to measure.

    Attributes:
        quick: only a budget of 2 tau, one server, and a seed for every run of a load.
        dtype: of the model; `auto` is what a server on this machine would take.
        twin: only two servers against the simulator.
        minutes: that all of it may take.
        own: settings of the servers, as `section.key=value`.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    preset: str = "hstu-tiny"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    quick: bool = True
    twin: bool = False
    minutes: float = 4.5
    seed: int = 0
    own: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if preset(self.preset).contextual:
            raise ConfigError("--preset", f"{self.preset!r} has profile slots; users here have none")
        for option, value, low, high in (
            ("--minutes", self.minutes, 0.1, _MOST_MINUTES),
            ("--seed", self.seed, 0, 2**31),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value:g} is outside [{low:g}, {high:g}]")

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.seed + number for number in range(1 if self.quick else 5))

    def cases(self) -> list[Case]:
        """What is searched for, the two of the headline first."""
        once = Traffic(regime="first_touch", warmup=_WARMUP, candidates=TAU_CANDIDATES)
        again = msgspec.structs.replace(once, regime="sessions")
        many = msgspec.structs.replace(once, candidates=_MANY_CANDIDATES)
        if self.twin:
            return []
        if self.quick:
            return [Case(RANK_TAUS, once), Case(RANK_TAUS, again)]
        return [
            Case(RANK_TAUS, once, 1.5),
            Case(RANK_TAUS, again, 1.5),
            Case(MORE_TAUS, once),
            Case(MORE_TAUS, again),
            Case(_MANY_TAUS, many),
        ]

    def effort(self) -> Effort:
        if self.quick:
            # Runs that confirm one another take twice the time; with less, each edge is at least found.
            confirmed = self.minutes >= _CONFIRMED_MINUTES
            return Effort(
                seeds=self.seeds,
                least=100,
                most=1000,
                least_length=100,
                tries=12 if confirmed else 6,
                rate_step=1.06 if confirmed else 1.15,
                caution=0.85,
                longest=_LONGEST,
                votes=2 if confirmed else 1,
                again=not confirmed,
            )
        return Effort(
            seeds=self.seeds,
            least=100,
            most=1000,
            least_length=100,
            tries=6,
            rate_step=1.05,
            caution=0.9,
            longest=_LONGEST,
        )
