"""The options that all sub-commands of `relaygr simulate` share, and the world they describe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec.structs import replace

from relaygr.config.host import HostConfig
from relaygr.config.relay import RouterConfig, TriggerConfig
from relaygr.config.sizes import parse_bytes
from relaygr.core.errors import ConfigError
from relaygr.relay.budgets import tau_ms
from relaygr.relay.latency import Coefficients
from relaygr.sim.costs import Costs, measured_file
from relaygr.sim.traffic import Traffic
from relaygr.sim.world import World, budgets_of

# A machine in round numbers, for trying the command: tau = 53 ms.
_DEMO = Coefficients(t0_ms=3.0, t1_ms=0.015, t2_ms=8e-6, t_launch_ms=1.0)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SimOptions:
    """Of the fleet and its traffic.

    Parameters
    ----------
    calibration: Path | None
        File of `relaygr calibrate --json`; without one, a made-up machine.
    scatter: bool
        Passes scatter as the measured ones did; otherwise all take their fitted time.
    overhead_ms: float
        What HTTP and the event loop add to a request.
    token_bytes: int
        Of a history token in memory, all layers (`relaygr plan model` prints it).
    link_gb_s: float
        Gigabytes a second between host and device.
    rank_taus: float
        Rank budget in units of tau, a full pass over 2,048 tokens and 128 candidates.
    rank_ms: float
        Rank budget in milliseconds instead; 0 goes by --rank-taus.
    chunk_taus: float
        Longest chunk of a pre-inference in units of tau; 0 derives it as a server does.
    slots: int
        Passes at once on an instance.
    copies: Literal["shared", "apart"]
        Copies between host and device take the model's time, as on a CPU, or have streams of their own.
    device: str
        Memory for user states on the device, such as 256MiB.
    host: str
        The same in host memory.
    u_max: float
        Share of the model's time for ranking and pre-inference.
    pre_burst: int
        Admitted signals at once.
    lead_quantile: float
        Of the lead times, the one that a pre-inference must meet.
    requests: int
        That count, of one simulation.
    warmup_taus: float
        Time in units of tau before sessions count, so that they begin as they go on.
    candidates: int
        Of one request.
    seeds: int
        Seeds of a probe; of 5, 4 must pass.
    seed: int
        The first of them.
    """

    calibration: Path | None = None
    scatter: bool = False
    overhead_ms: float = 0.0
    token_bytes: int = 4096
    link_gb_s: float = 4.0
    rank_taus: float = 2.0
    rank_ms: float = 0.0
    chunk_taus: float = 0.0
    slots: int = 1
    copies: Literal["shared", "apart"] = "shared"
    device: str = "1GiB"
    host: str = "1GiB"
    u_max: float = TriggerConfig().u_max
    pre_burst: int = TriggerConfig().pre_burst
    lead_quantile: float = TriggerConfig().lead_quantile
    requests: int = 2000
    warmup_taus: float = 500.0
    candidates: int = 128
    seeds: int = 1
    seed: int = 0

    def costs(self) -> Costs:
        if self.calibration is None:
            if self.scatter:
                raise ConfigError("--scatter", "needs the measured times of --calibration")
            found = Costs(coefficients=_DEMO)
        else:
            found = measured_file(self.calibration, self.scatter)
        return replace(
            found,
            overhead_ms=self.overhead_ms,
            token_bytes=self.token_bytes,
            link_bytes_per_s=1e9 * self.link_gb_s,
        )

    def world(self, instances: int = 1) -> World:
        costs = self.costs()
        return World(
            costs=costs,
            budgets=budgets_of(costs, self._rank_taus(costs), self.chunk_taus),
            trigger=TriggerConfig(
                u_max=self.u_max, pre_burst=self.pre_burst, lead_quantile=self.lead_quantile
            ),
            host=HostConfig(host_bytes=_bytes("--host", self.host)),
            # As even as the other, and much cheaper for hundreds of members.
            router=RouterConfig(hash="mix64"),
            instances=instances,
            slots=self.slots,
            device_bytes=_bytes("--device", self.device),
            shared_copies=self.copies == "shared",
        )

    def _rank_taus(self, costs: Costs) -> float:
        return self.rank_ms / tau_ms(costs.coefficients) if self.rank_ms else self.rank_taus

    def traffic(self) -> Traffic:
        return Traffic(
            requests=self.requests,
            warmup=max(self.requests // 20, 20),
            warmup_taus=self.warmup_taus,
            candidates=self.candidates,
        )

    def all_seeds(self) -> range:
        if self.seeds < 1:
            raise ConfigError("--seeds", f"{self.seeds} must be at least 1")
        return range(self.seed, self.seed + self.seeds)


Shared = Annotated[SimOptions | None, Parameter(name="*")]


def _bytes(option: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(option, str(error)) from error
