"""Everything about a simulated fleet but the requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from relaygr.config.host import HostConfig
from relaygr.config.relay import RelayConfig, RouterConfig, TriggerConfig
from relaygr.config.settings import SchedulerConfig
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB
from relaygr.relay.budgets import Budgets, auto_budgets, tau_ms
from relaygr.sim.costs import Costs
from relaygr.sim.variants import RELAY_FULL, Variant

_PAGE_TOKENS = 32
_MAX_TOKENS = 4096  # of the models here


Kind = Literal["kill", "join", "drain", "rollout"]


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something happens to an instance; times count from the first counted request.

    Attributes:
        kind: `kill` ends it without a word; `join` brings it, or a killed one back, cold; `drain` takes it
            out in order; `rollout` restarts it on the next build.
    """

    time_s: float
    kind: Kind
    instance: int


class World(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fleet of equal instances.

    Attributes:
        budgets: of requests, chunks and holds.
        instances: that are there at the beginning.
        slots: passes that an instance runs at once, each at full speed.
        device_bytes: for user states; `relay` says which part of it is for live prefixes.
        shared_copies: copies between host and device take a slot, as on a CPU; otherwise they have streams of
            their own.
        host_share: of the users, those whose whole history is in their instance's host memory before their
            first visit.
        changes: what happens to instances on the way.
    """

    costs: Costs
    budgets: Budgets
    variant: Variant = RELAY_FULL
    relay: RelayConfig = RelayConfig()
    trigger: TriggerConfig = TriggerConfig()
    host: HostConfig = HostConfig()
    router: RouterConfig = RouterConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    instances: int = 1
    slots: int = 1
    page_tokens: int = _PAGE_TOKENS
    device_bytes: int = GIB
    shared_copies: bool = True
    host_share: float = 0.0
    changes: tuple[Change, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("instances", self.instances, 1, 100_000),
            ("slots", self.slots, 1, 1024),
            ("page_tokens", self.page_tokens, 1, 4096),
            ("device_bytes", self.device_bytes, self.page_bytes, 1 << 60),
            ("host_share", self.host_share, 0, 1),
        ):
            if not low <= value <= high:
                raise ConfigError(f"world.{name}", f"{value} must be in [{low}, {high}]")
        for change in self.changes:
            if change.instance < 0:
                raise ConfigError("world.changes.instance", f"{change.instance} must not be negative")

    @property
    def page_bytes(self) -> int:
        return self.page_tokens * self.costs.token_bytes

    @property
    def h_relay_bytes(self) -> int:
        """The bound on live prefixes."""
        return self.relay.h_relay_bytes or int(self.relay.h_relay_share * self.device_bytes)

    @property
    def tau_s(self) -> float:
        """The machine's own clock."""
        return tau_ms(self.costs.coefficients) / 1000

    def prefix_bytes(self, tokens: int) -> int:
        """Device bytes of a prefix, in whole pages."""
        return -(-tokens // self.page_tokens) * self.page_bytes


def budgets_of(costs: Costs, rank_taus: float = 2.0, chunk_taus: float = 0.0) -> Budgets:
    """The budgets that a server derives from its calibration, with a ranking budget in units of tau.

    Args:
        chunk_taus: longest chunk; 0 leaves what is derived.
    """
    found = auto_budgets(costs.coefficients, _PAGE_TOKENS, _MAX_TOKENS)
    tau = tau_ms(costs.coefficients)
    chunk_ms = chunk_taus * tau if chunk_taus else found.chunk_ms
    return replace(found, b_rank_ms=rank_taus * tau, chunk_ms=chunk_ms)
