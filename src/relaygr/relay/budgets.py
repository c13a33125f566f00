"""What each stage of a request may take: named by the settings or derived from the speed of the machine."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from relaygr.config.settings import BudgetConfig
from relaygr.core.errors import ConfigError
from relaygr.relay.latency import Chunks, Coefficients

# The pass whose time is the unit of `auto`: events and candidates.
TAU_HISTORY, TAU_CANDIDATES = 2048, 128


@dataclass(frozen=True, slots=True)
class Budgets:
    """Milliseconds; see `BudgetConfig`.

    Attributes:
        t_life_ms: 0 follows measurement.
        rank_wait_cap_ms: None for what the rank budget leaves.
    """

    b_pipe_ms: float
    b_rank_ms: float
    guard_ms: float
    lead_default_ms: float
    lead_p99_ms: float
    chunk_ms: float
    t_life_ms: float
    t_life_slack_ms: float
    drain_ms: float
    rank_wait_cap_ms: float | None = None

    def rank_wait_ms(self, hit_p99_ms: float) -> float:
        """How long ranking may wait for a prefix that a hit of `hit_p99_ms` will use; 0 if it may not."""
        left = max(self.b_rank_ms - hit_p99_ms - self.guard_ms, 0.0)
        return left if self.rank_wait_cap_ms is None else self.rank_wait_cap_ms


# For accelerators.
FIXED_BUDGETS = Budgets(
    b_pipe_ms=300.0,
    b_rank_ms=50.0,
    guard_ms=3.0,
    lead_default_ms=80.0,
    lead_p99_ms=150.0,
    chunk_ms=4.0,
    t_life_ms=300.0,
    t_life_slack_ms=50.0,
    drain_ms=300.0,
)


def tau_ms(coefficients: Coefficients) -> float:
    """The machine's own clock: a full pass over 2,048 history tokens and 128 candidates."""
    return coefficients.full_ms(TAU_HISTORY, 0, TAU_CANDIDATES)


def auto_chunk_ms(coefficients: Coefficients) -> float:
    """A twelfth of `tau_ms`, or 16 times what launching it takes, up to half of `tau_ms`."""
    tau = tau_ms(coefficients)
    return max(tau / 12, min(16 * coefficients.t_launch_ms, tau / 2))


def auto_budgets(coefficients: Coefficients, page_tokens: int, max_tokens: int) -> Budgets:
    """Budgets in units of `tau_ms`; a chunk is at least one page behind up to `max_tokens`."""
    tau, chunk_ms = tau_ms(coefficients), auto_chunk_ms(coefficients)
    return Budgets(
        b_pipe_ms=8 * tau,
        b_rank_ms=2 * tau,
        guard_ms=tau / 16,
        lead_default_ms=2 * tau,
        lead_p99_ms=5 * tau,
        chunk_ms=max(chunk_ms, Chunks(coefficients, chunk_ms, page_tokens).page_ms(max_tokens)),
        t_life_ms=8 * tau,
        t_life_slack_ms=FIXED_BUDGETS.t_life_slack_ms,
        drain_ms=8 * tau,
    )


def resolve_budgets(config: BudgetConfig, auto: Budgets) -> Budgets:
    """The settings, with `auto` for what they leave open; draining takes as long as a prefix is held."""
    named = {name: value for name, value in msgspec.structs.asdict(config).items() if value != "auto"}
    t_life_ms = named.get("t_life_ms", auto.t_life_ms)
    values = {name: getattr(auto, name) for name in Budgets.__slots__}
    return Budgets(**{**values, "drain_ms": t_life_ms or auto.drain_ms, **named})


def check_budgets(budgets: Budgets, chunk_bound_ms: float) -> None:
    """Refuse budgets that contradict one another, or a build whose smallest chunk breaks them.

    Args:
        chunk_bound_ms: what a chunk can really take (`Chunks.bound_ms`).

    Raises:
        ConfigError: with path, value and limit.
    """
    b, rank = budgets, budgets.b_rank_ms
    hold = b.lead_p99_ms + rank
    rules = (
        ("b_rank_ms", rank, rank <= b.b_pipe_ms, f"at most b_pipe_ms = {b.b_pipe_ms:g}"),
        ("guard_ms", b.guard_ms, b.guard_ms < rank, f"less than b_rank_ms = {rank:g}"),
        (
            "lead_default_ms",
            b.lead_default_ms,
            b.lead_default_ms <= b.lead_p99_ms,
            f"at most lead_p99_ms = {b.lead_p99_ms:g}",
        ),
        ("chunk_ms", b.chunk_ms, b.chunk_ms < rank, f"less than b_rank_ms = {rank:g}"),
        (
            "t_life_ms",
            b.t_life_ms,
            not b.t_life_ms or b.t_life_ms >= hold,
            f"0 or at least lead_p99_ms + b_rank_ms = {hold:g}",
        ),
    )
    for name, value, holds, wanted in rules:
        if not holds:
            raise ConfigError(BudgetConfig.key(name), f"{value:g} must be {wanted}")
    if chunk_bound_ms >= rank:
        raise ConfigError(
            BudgetConfig.key("b_rank_ms"),
            f"{rank:g} must be more than the {chunk_bound_ms:g} ms that one page of a pre-inference can take",
        )
